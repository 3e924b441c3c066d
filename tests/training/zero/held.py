"""What DeepSpeed's engine holds of a wide model in one update, by ZeRO stage, precision and offloading.

Run by torchrun: held.py FILE
"""

import json
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import torch

from looprl.data.tokenizer import build_tokenizer
from looprl.measure.meter import StepMeter
from looprl.training.distributed import join_processes
from looprl.training.held_memory import HeldMemory
from looprl.training.zero import STAGES, initialized, master_weights
from tests.training.zero.taped import make_model

WIDTH = 256
CASES = [(stage, dtype, offload) for stage in STAGES for dtype in ("float32", "bfloat16") for offload in (False, True)]


def wide_model(dtype):
    return make_model(build_tokenizer(), tied=True, width=WIDTH).to(dtype)


def hold(stage, dtype, offload):
    """Bytes of parameters, gradients and optimizer, and of the gradients that the optimizer itself is given."""
    model = wide_model(getattr(torch, dtype))
    engine = initialized(model, stage, offload)
    trainer = SimpleNamespace(
        deepspeed=engine,
        model=model,
        optimizer=engine.optimizer,
        accelerator=SimpleNamespace(device=torch.device("cpu")),
    )
    meter = StepMeter()
    held = HeldMemory(trainer, meter)
    held.on_train_begin(None, None, None)
    given = []
    update = engine.optimizer.optimizer.step

    def step(*args, **kwargs):
        given.append(sum(weights.grad.nbytes for weights in master_weights(engine.optimizer)))
        return update(*args, **kwargs)

    engine.optimizer.optimizer.step = step
    ids = torch.randint(4, 300, (2, 12))
    engine.backward(engine(ids, num_loops=1).logits.float().logsumexp(-1).mean())
    engine.step()
    held.on_optimizer_step(None, None, None)
    return meter.flush() | {"given": given[0]}


def main(out):
    join_processes(timedelta(seconds=60))
    found = [hold(*case) for case in CASES]
    if torch.distributed.get_rank() == 0:
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
