"""`looprl` in a process that sends itself a signal at a chosen moment: killed_run.py SIGNAL MOMENT STEP ...

Of several ranks one does so: the first where only that one comes to the moment, else another at each step.

The moments lie inside what they are named after: tokens are drawn but their states not yet taken, the loss is there
but no gradient, some gradients are there and others not, the weights have moved but the scheduler has not, half of a
file of the checkpoint is written, or all of it but not yet its name.
"""

import os
import signal
import sys
from pathlib import Path
from unittest.mock import patch

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from looprl import checkpoints, cli
from looprl.rollout.engine import RolloutEngine
from looprl.training.trainer import LoopedGRPOTrainer

MOMENTS = ("rollout", "reward", "scoring", "backward", "optimizer", "half a file", "unnamed", "between names")
OF_THE_FIRST = ("unnamed", "between names")


def main(sent: signal.Signals, moment: str, step: int, arguments: list[str]) -> int:
    now = {"step": -1}  # steps done
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    chosen = rank == (0 if moment in OF_THE_FIRST else step % ranks)

    def die() -> None:
        if now["step"] == step and chosen:
            os.kill(os.getpid(), sent)

    def after(owner, name):
        """Die when the call returns."""
        original = getattr(owner, name)

        def call(*args, **kwargs):
            result = original(*args, **kwargs)
            die()
            return result

        return patch.object(owner, name, call)

    def before(owner, name):
        original = getattr(owner, name)

        def call(*args, **kwargs):
            die()
            return original(*args, **kwargs)

        return patch.object(owner, name, call)

    def half_saved(content, file, *args, **kwargs):
        whole_save(content, file, *args, **kwargs)
        if now["step"] == step and chosen:
            with open(file, "r+b") as stream:
                stream.truncate(Path(file).stat().st_size // 2)
        die()

    training_step, whole_save = LoopedGRPOTrainer.training_step, torch.save

    def noted(trainer, *args, **kwargs):
        now["step"] = trainer.state.global_step
        if moment == "backward" and now["step"] == step:
            parameters = [p for p in trainer.model.parameters() if p.requires_grad]
            parameters[len(parameters) // 2].register_post_accumulate_grad_hook(lambda _: die())
        return training_step(trainer, *args, **kwargs)

    if moment == "optimizer":
        register_optimizer_step_post_hook(lambda *_: die())
    places = {
        "rollout": lambda: before(RolloutEngine, "_take_states"),
        "reward": lambda: after(LoopedGRPOTrainer, "_calculate_rewards"),
        "scoring": lambda: after(LoopedGRPOTrainer, "score"),
        "half a file": lambda: patch.object(torch, "save", half_saved),
        "unnamed": lambda: after(checkpoints, "_write_manifest"),
        "between names": lambda: after(os, "rename"),
    }
    with patch.object(LoopedGRPOTrainer, "training_step", noted):
        if moment in places:
            with places[moment]():
                return cli.main(arguments)
        return cli.main(arguments)


# vLLM's worker processes import this module again, under another name.
if __name__ == "__main__":
    sys.exit(main(signal.Signals[sys.argv[1]], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
