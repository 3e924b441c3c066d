"""What DeepSpeed adds to a J^T product, under each ZeRO stage.

A product is timed where training makes it, inside the backward of a DeepSpeed engine, in two ranks that torchrun's
agent starts: on one model without DeepSpeed and one under each stage, in interleaved rounds.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor

from looprl.errors import UserError
from looprl.gradients import AdjointSolution, AdjointSolver, Estimator
from looprl.gradients.adjoint import Product
from looprl.launch import run_ranks
from looprl.measure.bench_updates import SHAPES, Shape
from looprl.training.distributed import join_processes
from looprl.training.zero import STAGES, initialized

PROCESSES = 2
NUM_LOOPS = 6
WITHOUT = "none"


@dataclass(frozen=True)
class TimedSolver(AdjointSolver):
    """Keeps the seconds of every product."""

    seconds: list[float] = field(default_factory=list, compare=False)

    def __call__(self, cotangent: Tensor, transposed_jacobian: Product) -> AdjointSolution:
        def timed(vector: Tensor) -> Tensor:
            start = time.perf_counter()
            product = transposed_jacobian(vector)
            if product.is_cuda:
                torch.cuda.synchronize()
            self.seconds.append(time.perf_counter() - start)
            return product

        return super().__call__(cotangent, timed)


def product_cost_under_zero(repeats: int) -> dict[str, float]:
    """Seconds of a product under ZeRO over those without, by stage: the fastest of `repeats` rounds of four.

    The fastest, because two ranks that share a machine's cores slow each other down by chance. On GPUs there must be
    two. UserError when a rank fails.
    """
    with tempfile.TemporaryDirectory(prefix="looprl-products-") as folder:
        out = Path(folder) / "seconds.json"
        code = run_ranks(("-m", "looprl.training.product_bench", str(out), str(repeats)), PROCESSES)
        if code:
            raise UserError("the J^T product could not be timed under ZeRO; the messages above say why")
        seconds: dict[str, list[float]] = json.loads(out.read_text())
    return {stage: min(seconds[stage]) / min(seconds[WITHOUT]) for stage in map(str, STAGES)}


def measure(repeats: int, shape: Shape = SHAPES[-1]) -> dict[str, list[float]]:
    """Seconds of each product, by stage; to be called in every rank at once."""
    join_processes(timedelta(minutes=10))
    solvers = {name: TimedSolver(4) for name in (WITHOUT, *map(str, STAGES))}
    updates = {name: _update(shape, name, solver) for name, solver in solvers.items()}
    for number in range(repeats + 1):
        for name, update in updates.items():
            torch.distributed.barrier()
            if number == 1:
                solvers[name].seconds.clear()  # the first round warms up
            update()
    return {name: solver.seconds for name, solver in solvers.items()}


def _update(shape: Shape, stage: str, solver: TimedSolver) -> Callable[[], None]:
    """Forward and backward of `reuse` with this solver."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    model = shape.model(device.type)
    ids = torch.randint(3, 512, (shape.batch, shape.length), generator=torch.Generator().manual_seed(0)).to(device)
    with torch.no_grad():
        state = model(ids, num_loops=NUM_LOOPS - 1).state
    engine = None if stage == WITHOUT else initialized(model, int(stage))
    estimator = Estimator("rollout", 1, solver)

    def update() -> None:
        output = (engine or model)(ids, num_loops=NUM_LOOPS, initial_state=state, loop_runner=estimator)
        loss = output.logits.float().logsumexp(-1).mean()
        if engine is None:
            loss.backward()
        else:
            engine.backward(loss)
            engine.step()

    return update


if __name__ == "__main__":
    found = measure(int(sys.argv[2]))
    if torch.distributed.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))
