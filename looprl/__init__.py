"""RL post-training for looped (depth-recurrent) language models."""

import importlib
import os
import sys
from typing import Any

# As torchrun's default: the threads of trainer and engine would spin against each other for the same cores.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # vLLM warns of its NUMA binding at every start

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
