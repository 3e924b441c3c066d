"""What an exit gate says of sampled completions, and how much of its probability falls on each depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from looprl.models.exit_gate import exit_distribution, exit_places
from looprl.rollout.record import RolloutRecord

Row = dict[str, Any]


@dataclass(frozen=True)
class ExitGate:
    """Means over the tokens of a completion.

    probabilities: of stopping at each of the R loops. loop: the loop, from 1, where the token was read out: R, or
    where early exit stopped it.
    """

    probabilities: list[float]
    loop: float


def read_exit_gate(record: RolloutRecord, threshold: float | None = None) -> ExitGate:
    """The gate at the positions that predicted the completion, from a record whose states are of kind `gate`.

    ValueError on a record of another kind, or without a token.
    """
    count = len(record.completion_ids)
    if record.state_kind != "gate" or not count:
        raise ValueError(f"a record of {count} completion tokens with {record.state_kind} states tells of no gate")
    predicting = record.states[len(record.prompt_ids) - 1 :, : record.num_loops]
    probabilities = exit_distribution(predicting.double())
    exit_loop = float(record.num_loops)
    if threshold is not None:
        exit_loop = float((exit_places(probabilities, threshold) + 1).double().mean())
    return ExitGate(probabilities.mean(0).tolist(), exit_loop)


def mean_exit_gate(rows: Sequence[Mapping[str, Any]]) -> Row:
    """The means of completions or problems with `exit_probabilities` and `exit_loop`, over all their `tokens`.

    Empty where the rows do not have them.
    """
    if "exit_probabilities" not in rows[0]:
        return {}
    tokens = sum(row["tokens"] for row in rows)
    by_loop = zip(*(row["exit_probabilities"] for row in rows), strict=True)
    return {
        "exit_probabilities": [
            sum(row["tokens"] * value for row, value in zip(rows, of_loop, strict=True)) / tokens for of_loop in by_loop
        ],
        "exit_loop": sum(row["tokens"] * row["exit_loop"] for row in rows) / tokens,
    }


def with_depths(rows: Sequence[Row]) -> list[Row]:
    """Rows of `eval.json`, those at a fixed depth with what the gate of their task says of stopping there.

    exit_probability: at that loop; exit_cdf: by that loop. Both are of the row with the most loops and without early
    exit. expected_exit_loop: the mean of the row's own distribution. Rows without a gate stay as they are.
    """
    deepest: dict[str, Row] = {}
    for row in rows:
        if _is_at_fixed_depth(row) and row["num_loops"] > deepest.get(row["task"], {"num_loops": 0})["num_loops"]:
            deepest[row["task"]] = row
    return [_with_depth(row, deepest.get(row["task"])) for row in rows]


def _is_at_fixed_depth(row: Row) -> bool:
    return "exit_probabilities" in row and row["exit_threshold"] is None


def _with_depth(row: Row, deepest: Row | None) -> Row:
    if "exit_probabilities" not in row:
        return row
    more = {"expected_exit_loop": sum(loop * share for loop, share in enumerate(row["exit_probabilities"], start=1))}
    if deepest is not None and _is_at_fixed_depth(row):
        up_to_here = deepest["exit_probabilities"][: row["num_loops"]]
        more |= {"exit_probability": up_to_here[-1], "exit_cdf": sum(up_to_here)}
    return row | more
