"""RL post-training for looped (depth-recurrent) language models."""

import importlib
from typing import Any

_EXPORTS = {
    "LoopedGRPOConfig": "looprl.training.config",
    "LoopedGRPOTrainer": "looprl.training.trainer",
    "load_model": "looprl.models",
}

__all__ = ["LoopedGRPOConfig", "LoopedGRPOTrainer", "load_model"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'looprl' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
