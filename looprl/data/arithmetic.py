"""Templated arithmetic word problems in GSM8K's format: a question and an answer with worked steps.

    Tom has 12 apples. Tom buys 3. Tom loses 4. How many apples does Tom have?

    12 + 3 = 15
    15 - 4 = 11
    #### 11

Training and held-out problems never overlap: a hash of the question's text decides, whatever the seed.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import TypedDict

from looprl.data.errors import DatasetError

NAMES = ("Tom", "Ann", "Sam", "Mia", "Leo", "Eve")
THINGS = ("apples", "coins", "cards", "pens")
GAINS = ("finds", "buys", "wins")
LOSSES = ("loses", "eats", "sells")

SPLITS = ("train", "test")
HELD_OUT_ONE_IN = 8
SMALLEST_START = 2
LARGEST_NUMBER = 99
LARGEST_SLIP = 3


class Problem(TypedDict):
    """One row: the question, and the worked answer that ends in `#### number`."""

    question: str
    answer: str


@dataclass(frozen=True)
class ArithmeticTask:
    """How hard the problems are.

    `num_steps`: gains and losses per problem. `max_start`: the largest number a problem starts from (the
    smallest is 2). `max_operand`: the most that is gained or lost at once. `max_value`: the largest value
    on the way and at the end (the smallest is 0).

    Raises:
        DatasetError: a knob is not an integer or is out of range.
    """

    num_steps: int = 2
    max_start: int = 20
    max_operand: int = 9
    max_value: int = 30

    def __post_init__(self) -> None:
        for knob in fields(self):
            value = getattr(self, knob.name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise DatasetError(f"arithmetic: {knob.name} must be an integer, not {value!r}")
        self._require("num_steps", 1, None, "")
        self._require("max_value", SMALLEST_START, LARGEST_NUMBER, " (numbers up to 99 are one token each)")
        self._require("max_start", SMALLEST_START, self.max_value, " (max_value)")
        self._require("max_operand", 1, self.max_value, " (max_value)")

    def _require(self, knob: str, low: int, high: int | None, why: str) -> None:
        value = getattr(self, knob)
        if value < low or (high is not None and value > high):
            allowed = f"at least {low}" if high is None else f"between {low} and {high}{why}"
            raise DatasetError(f"arithmetic: {knob} must be {allowed}, not {value}")


@dataclass(frozen=True)
class _Story:
    """What happens in one problem: `changes` are signed amounts, each told with its verb."""

    name: str
    thing: str
    start: int
    changes: tuple[int, ...]
    verbs: tuple[str, ...]

    def question(self) -> str:
        events = (f"{self.name} {verb} {abs(change)}." for verb, change in zip(self.verbs, self.changes, strict=True))
        return " ".join(
            (
                f"{self.name} has {self.start} {self.thing}.",
                *events,
                f"How many {self.thing} does {self.name} have?",
            )
        )


def is_held_out(question: str) -> bool:
    """Whether a question belongs to the test split: about one in eight, the same ones on every machine."""
    digest = hashlib.sha256(question.encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


def problems(task: ArithmeticTask, split: str, count: int, seed: int) -> list[Problem]:
    """Draw `count` problems of one split, no two with the same question.

    Raises:
        DatasetError: an unknown split, a negative count, or a task with too few distinct problems.
    """
    drawn: dict[str, Problem] = {}
    misses = 0
    stories = _stories(task, split, count, seed)
    while len(drawn) < count:
        story = next(stories)
        question = story.question()
        if question not in drawn:
            drawn[question] = {"question": question, "answer": _worked_answer(story.start, story.changes)}
            misses = 0
            continue
        misses += 1
        if misses > 500 + 50 * len(drawn):
            raise DatasetError(
                f"arithmetic: {count} distinct {split} problems were asked for, but only {len(drawn)} were "
                f"found with {task}: ask for fewer or raise max_start, max_operand, max_value or num_steps"
            )
    return list(drawn.values())


def demonstrations(
    task: ArithmeticTask, count: int, seed: int, skip_last_step: float = 0.5, wrong_step: float = 0.05
) -> list[Problem]:
    """Draw worked answers of deliberately mixed quality, for pretraining; questions may repeat.

    With probability `skip_last_step` an answer leaves the last operation out and gives the value before it.
    Each written result is off by 1 to 3 with probability `wrong_step`, and later steps go on from it;
    written results stay in 0..99. Every question is a training question.

    Raises:
        DatasetError: a negative count or a probability outside 0..1.
    """
    for name, probability in (("skip_last_step", skip_last_step), ("wrong_step", wrong_step)):
        if not 0 <= probability <= 1:
            raise DatasetError(f"arithmetic: {name} is a probability, so between 0 and 1, not {probability}")
    stories = _stories(task, "train", count, seed)
    quality = Random(f"arithmetic/demonstrations/{seed}")

    def written(result: int) -> int:
        result = min(max(result, 0), LARGEST_NUMBER)
        if quality.random() >= wrong_step:
            return result
        low, high = max(result - LARGEST_SLIP, 0), min(result + LARGEST_SLIP, LARGEST_NUMBER)
        return quality.choice([number for number in range(low, high + 1) if number != result])

    rows: list[Problem] = []
    for _ in range(count):
        story = next(stories)
        steps = story.changes[:-1] if quality.random() < skip_last_step else story.changes
        rows.append({"question": story.question(), "answer": _worked_answer(story.start, steps, written)})
    return rows


def rows(task: ArithmeticTask, split: str, count: int, seed: int) -> list[Problem]:
    """Draw one split: `train` and `test` are problems, `demonstrations` are worked answers for pretraining.

    Raises:
        DatasetError: as `problems` and `demonstrations`.
    """
    return demonstrations(task, count, seed) if split == "demonstrations" else problems(task, split, count, seed)


def template_texts() -> list[str]:
    """Return texts that together hold every word and sign of the templates, for building a vocabulary."""
    texts = []
    for name in NAMES:
        for thing in THINGS:
            changes = (1,) * len(GAINS) + (-1,) * len(LOSSES)
            story = _Story(name, thing, SMALLEST_START, changes, GAINS + LOSSES)
            texts.append(f"{story.question()}\n{_worked_answer(story.start, changes)}")
    return texts


def _stories(task: ArithmeticTask, split: str, count: int, seed: int) -> Iterator[_Story]:
    """Check the request, then return an endless stream of the split's problems."""
    if split not in SPLITS:
        raise DatasetError(f"arithmetic: there is no split {split!r}; its splits are {' and '.join(SPLITS)}")
    if count < 0:
        raise DatasetError(f"arithmetic: the number of problems cannot be negative, as {count} is")
    rng = Random(f"arithmetic/{split}/{seed}")
    endless = iter(lambda: _draw_story(task, rng), None)
    return (story for story in endless if is_held_out(story.question()) == (split == "test"))


def _draw_story(task: ArithmeticTask, rng: Random) -> _Story:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    start = value = rng.randint(SMALLEST_START, task.max_start)
    changes: list[int] = []
    verbs: list[str] = []
    for _ in range(task.num_steps):
        lowest = max(-task.max_operand, -value)
        highest = min(task.max_operand, task.max_value - value)
        change = rng.choice([change for change in range(lowest, highest + 1) if change != 0])
        changes.append(change)
        verbs.append(rng.choice(GAINS if change > 0 else LOSSES))
        value += change
    return _Story(name, thing, start, tuple(changes), tuple(verbs))


def _worked_answer(start: int, changes: Sequence[int], written: Callable[[int], int] = lambda result: result) -> str:
    """Write a line per change and the final line; `written` gives the number put down for a true result."""
    value = start
    lines = []
    for change in changes:
        result = written(value + change)
        lines.append(f"{value} {'+' if change > 0 else '-'} {abs(change)} = {result}")
        value = result
    return "\n".join((*lines, f"#### {value}"))
