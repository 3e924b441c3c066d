"""From the completions of an evaluation to a row per problem, and from those to a row per task and number of loops.

A completion passes where its reward is 1. One that cannot be judged (reward None) is left out and counted.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from looprl.measure.exit_gate import mean_exit_gate
from looprl.measure.pass_at_k import interval_over_problems, majority, pass_at_k

Row = dict[str, Any]


def problem_rows(samples: Sequence[Mapping[str, Any]], k: int, **labels: Any) -> list[Row]:
    """One row per problem, from its k completions, which stand together; `labels` go first into each row.

    judged: completions that could be judged. passed: those that pass. avg: their share; None where none is judged.
    pass_at: by j = 1, 2, 4, ... and k, None where fewer than j are judged. majority: None where none is judged, or the
    task does not say what an answer is; then `votes`, the final answers by frequency, is missing.
    """
    return [
        _problem_row(samples[start : start + k], {**labels, "problem": samples[start]["problem"]})
        for start in range(0, len(samples), k)
    ]


def _problem_row(samples: Sequence[Mapping[str, Any]], labels: Row) -> Row:
    judged = [sample for sample in samples if sample["reward"] is not None]
    passes = [sample["reward"] == 1 for sample in judged]
    n, passed = len(judged), sum(passes)
    row = {
        **labels,
        "prompt": samples[0]["prompt"],
        "judged": n,
        "passed": passed,
        "avg": passed / n if n else None,
        "pass_at": {j: pass_at_k(n, passed, j) if j <= n else None for j in _powers_up_to(len(samples))},
        "majority": None,
        "tokens": statistics.fmean(sample["tokens"] for sample in samples),
        "truncated": sum(sample["truncated"] for sample in samples),
        **mean_exit_gate(samples),
    }
    if "final_answer" in samples[0]:
        answers = [sample["final_answer"] for sample in judged]
        row["majority"] = majority(answers, passes) if n else None
        row["votes"] = dict(Counter(answer for answer in answers if answer is not None).most_common())
    return row


def summary_row(problems: Sequence[Row], k: int) -> Row:
    """The row of `eval.json` for the problems of one task at one number of loops; intervals are over problems.

    n: problems with a judged completion. avg_at_k: the mean of their shares that pass, which is pass@1; ci95: its
    interval. pass_at_k, pass_at: over the problems with that many judged completions. majority_at_k: None where the
    task does not say what an answer is. unjudged: completions left out. tokens: mean per completion. Where the exit
    gate was read, also `exit_threshold` and the means of `mean_exit_gate`.
    """
    averages = [row["avg"] for row in problems if row["avg"] is not None]
    any_pass = [row["pass_at"][k] for row in problems if row["pass_at"][k] is not None]
    votes = [row["majority"] for row in problems if row["majority"] is not None]
    return {
        **{label: problems[0][label] for label in ("task", "num_loops", "exit_threshold") if label in problems[0]},
        "k": k,
        "n": len(averages),
        "avg_at_k": _mean(averages),
        "ci95": interval_over_problems(averages, sum(row["judged"] for row in problems)),
        "pass_at_k": _mean(any_pass),
        "pass_at_k_ci95": interval_over_problems(any_pass, len(any_pass)),
        "majority_at_k": _mean(votes),
        "majority_at_k_ci95": interval_over_problems(votes, len(votes)),
        "pass_at": {
            j: _mean([row["pass_at"][j] for row in problems if row["pass_at"][j] is not None]) for j in _powers_up_to(k)
        },
        "unjudged": k * len(problems) - sum(row["judged"] for row in problems),
        "tokens": statistics.fmean(row["tokens"] for row in problems),
        "truncated_share": sum(row["truncated"] for row in problems) / (k * len(problems)),
        **mean_exit_gate(problems),
    }


def _powers_up_to(k: int) -> list[int]:
    """1, 2, 4, ... below k, and k itself."""
    return [2**power for power in range((k - 1).bit_length())] + [k]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
