"""Training: the Dr. GRPO trainer on TRL, pretraining, and their settings."""

import os
import warnings

import torch

import looprl.rollout  # noqa: F401  its settings must stand before TRL imports vLLM

# TRL 1.16 names vLLM 0.31 as the newest that it knows; the pinned 0.32 is what looprl's tests run on.
warnings.filterwarnings("ignore", message="TRL currently supports vLLM", category=UserWarning)
if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
