"""Policy gradients of looped models: the replayed loop, its adjoint, the estimators."""

from looprl.gradients.adjoint import AdjointSolution, AdjointSolver, NeumannSteps
from looprl.gradients.estimator import PRESETS, Estimator
from looprl.gradients.log_probs import token_log_probs
from looprl.gradients.replay import replay

__all__ = ["PRESETS", "AdjointSolution", "AdjointSolver", "Estimator", "NeumannSteps", "replay", "token_log_probs"]
