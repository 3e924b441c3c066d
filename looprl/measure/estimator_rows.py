"""What the rows of the bench and of the gradient comparison share: the estimator, its cost, and its name in a table."""

from dataclasses import dataclass
from typing import Any

from looprl.gradients import Estimator
from looprl.measure.timing import Seconds

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """An estimator to measure, and the preset's name that it goes by."""

    name: str
    estimator: Estimator

    @classmethod
    def preset(cls, name: str, *settings: Any, **more: Any) -> "Case":
        """The case of `Estimator.preset` with the same arguments."""
        return cls(name, Estimator.preset(name, *settings, **more))

    @property
    def has_series(self) -> bool:
        """Whether the estimator replays a single loop and solves for its adjoint."""
        return self.name in ("reuse", "recompute")

    def row(self, shape: object, num_loops: int, seconds: Seconds, full: Seconds, peak_bytes: int) -> Row:
        """The keys that both tables have; what an estimator does not use is None."""
        return {
            "shape": str(shape),
            "estimator": self.name,
            "replay_from": self.estimator.replay_from if self.has_series else None,
            "num_loops": num_loops,
            "neumann_steps": self.estimator.neumann_steps,
            "adjoint_solver": self.estimator.solver.method if self.has_series else None,
            "loop_weights": self.estimator.loop_weights,
            "loops_recorded": self.estimator.loops_recorded or num_loops,
            "seconds": seconds.median,
            "seconds_range": [seconds.fastest, seconds.slowest],
            "peak_bytes": peak_bytes,
            "speedup_vs_full": full.median / seconds.median,
        }


def estimator_name(row: Row) -> str:
    """Such as `full`, `rltt exit`, `truncated b=2`, `recompute K=4`, `reuse K=auto`, `reuse LS K=2`, `endpoint K=4`."""
    if row["estimator"] == "truncated":
        return f"truncated b={row['loops_recorded']}"
    if row["loop_weights"] is not None:
        return f"{row['estimator']} {row['loop_weights']}"
    if row["adjoint_solver"] is None:
        return row["estimator"]
    from_endpoint = row["replay_from"] == "endpoint"
    name = "endpoint" if from_endpoint and row["estimator"] == "reuse" else row["estimator"]
    name += " endpoint" if from_endpoint and row["estimator"] == "recompute" else ""
    name += " LS" if row["adjoint_solver"] == "least_squares" else ""
    return f"{name} K={row['neumann_steps']}"
