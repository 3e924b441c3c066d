"""From completions and gold answers to scores: 1.0 where the final answer is the gold one, 0.0 where it is not.

Numbers are compared as exact fractions. Formulas are compared by math-verify, in worker processes with a time limit:
its own limit is an alarm, which works in no thread but the main one and not in the middle of one long multiplication.
"""

import re
from collections.abc import Sequence

from looprl.answers.equality import are_equal
from looprl.answers.extraction import find_answer, last_formula
from looprl.answers.numbers import Number, for_math_verify, numbers_in, plain, read_number

# What a formula is written with; between two numbers anything else is an enumeration or prose.
_CALCULATION = re.compile(r"[-+*/^\\×÷]")
_ENUMERATION = re.compile(r"[0-9]\s*[,;\s]\s*[0-9]")
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")

Decided = float | tuple[str, str]  # a score, or the (gold, answer) formulas that math-verify must compare


def number_scores(completions: Sequence[str], golds: Sequence[str]) -> list[float | None]:
    """Score completions against gold numbers; None where the gold is not one number, such as `18 or 19`."""
    return _scores([_decide_number(*pair) for pair in zip(completions, map(read_number, golds), strict=True)])


def solution_scores(completions: Sequence[str], golds: Sequence[str]) -> list[float | None]:
    """Score completions against gold numbers or LaTeX formulas; None where math-verify cannot read the gold."""
    decided = []
    for completion, gold in zip(completions, golds, strict=True):
        number = read_number(gold)
        decided.append(_decide_formula(completion, gold) if number is None else _decide_number(completion, number))
    return _scores(decided)


def final_answer(completion: str) -> str | None:
    """The answer that a completion gives, as a text that is the same for equal numbers; None where it gives none."""
    answer = find_answer(completion)
    text = last_formula(completion) if answer is None else answer.text.rpartition("=")[2]
    if text is None:  # prose without a mark or a formula ends with its answer
        return str(numbers[-1].value) if (numbers := numbers_in(completion)) else None
    number = next(iter(numbers_in(text)), None) if answer is not None and not answer.exact else read_number(text)
    return plain(text) or None if number is None else str(number.value)


def _scores(decided: Sequence[Decided | None]) -> list[float | None]:
    equal = are_equal([pair for pair in decided if isinstance(pair, tuple)])
    verdicts = [equal[pair] if isinstance(pair, tuple) else pair for pair in decided]
    return [None if verdict is None else float(verdict) for verdict in verdicts]


def _decide_number(completion: str, gold: Number | None) -> Decided | None:
    if gold is None:
        return None
    answer = find_answer(completion)
    if answer is None:
        return float(any(number.answers(gold) for number in numbers_in(completion)[-1:]))
    text = answer.text.rpartition("=")[2]
    numbers = numbers_in(text)
    if not answer.exact:
        return float(any(number.answers(gold) for number in numbers[:1]))
    number = read_number(text)
    if number is not None:
        return float(number.answers(gold))
    if not _is_calculation(text):  # a number with its unit, or a list of guesses
        return float(len(numbers) == 1 and numbers[0].answers(gold))
    return str(gold.value), for_math_verify(text)


def _decide_formula(completion: str, gold: str) -> Decided:
    answer = find_answer(completion)
    if answer is None:
        text = last_formula(completion) or ""
    else:
        text = answer.text if answer.exact else last_formula(answer.text) or answer.text
    return for_math_verify(gold), for_math_verify(text)


def _is_calculation(text: str) -> bool:
    text = plain(text)
    is_prose = _WORDS.search(re.sub(r"\\[A-Za-z]+", "", text)) is not None
    return not is_prose and _CALCULATION.search(text) is not None and _ENUMERATION.search(text) is None
