"""Policy gradients of looped models: the replayed loop, the Neumann adjoint, the estimators."""

from looprl.gradients.estimator import PRESETS, Estimator
from looprl.gradients.neumann import neumann_adjoint, replay

__all__ = ["PRESETS", "Estimator", "neumann_adjoint", "replay"]
