"""The metrics of a run that do not depend on the clock."""

from typing import Any

CLOCKS = ("time/", "rollout/tokens_per_second", "step_time", "train_", "profiling/")


def without_clocks(row: dict[str, Any]) -> dict[str, Any]:
    """A row of metrics.jsonl or of the trainer's log without what was timed."""
    return {key: value for key, value in row.items() if not key.startswith(CLOCKS)}
