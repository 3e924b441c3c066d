"""What DeepSpeed's engine holds of a wide model after one update, by ZeRO stage and precision.

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
from looprl.training.zero import STAGES, initialized
from tests.training.zero.taped import make_model

WIDTH = 256


def hold(stage, dtype):
    """Bytes of parameters, gradients and optimizer in one update of a model of this precision."""
    model = make_model(build_tokenizer(), tied=True, width=WIDTH).to(dtype)
    engine = initialized(model, stage)
    trainer = SimpleNamespace(
        deepspeed=engine,
        model=model,
        optimizer=engine.optimizer,
        accelerator=SimpleNamespace(device=torch.device("cpu")),
    )
    meter = StepMeter()
    held = HeldMemory(trainer, meter)
    held.on_train_begin(None, None, None)
    ids = torch.randint(4, 300, (2, 12))
    engine.backward(engine(ids, num_loops=1).logits.float().logsumexp(-1).mean())
    engine.step()
    held.on_optimizer_step(None, None, None)
    return meter.flush()


def main(out):
    join_processes(timedelta(seconds=60))
    found = {f"{stage}-{dtype}": hold(stage, getattr(torch, dtype)) for stage in STAGES for dtype in DTYPES}
    if torch.distributed.get_rank() == 0:
        Path(out).write_text(json.dumps(found))


DTYPES = ("float32", "bfloat16")

if __name__ == "__main__":
    main(*sys.argv[1:])
