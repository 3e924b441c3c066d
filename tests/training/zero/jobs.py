"""What is trained on tapes: the pairs of settings that the suite covers, the whole grid, ranks with nothing to do."""

from itertools import product

from tests.training.zero.taped import Job

FACTORS = {
    "stage": (1, 2, 3),
    "accumulation": (1, 2, 4),
    "neumann_steps": (0, 4, "auto"),
    "tied": (True, False),
    "checkpointing": (True, False),
}
# an orthogonal array: its fourth column, of three values, carries the two factors of two
PAIRWISE = [
    Job(
        stage,
        accumulation,
        FACTORS["neumann_steps"][(stage + index) % 3],
        tied=(stage + 2 * index) % 3 != 0,
        checkpointing=(stage + 2 * index) % 3 != 1,
    )
    for stage, (index, accumulation) in product(FACTORS["stage"], enumerate(FACTORS["accumulation"]))
] + [Job(3, 2, "auto", tied=False, checkpointing=False)]
ALONE = [Job(accumulation=2), Job(accumulation=4, tied=False), Job(accumulation=2, checkpointing=True)]
IDLE = [Job(stage, tape="idle_rank", neumann_steps="auto") for stage in (2, 3)]
EMPTY = [Job(stage, tape="empty_rank") for stage in (1, 3)]
GRID = [job for job in (Job(*values) for values in product(*FACTORS.values())) if job not in PAIRWISE]
# wide enough for the parameters to outweigh everything else; two micro-batches, so that gradients are kept between
LARGE = [Job(stage, accumulation=2, width=256, steps=1) for stage in (1, 2, 3)]
CONTROLLED = Job(2, control=True)
SEVERAL_LOOPS = [Job(3, estimator=name) for name in ("truncated", "full_checkpointed", "rltt")]
ESTIMATORS = [Job(3, estimator=name) for name in ("recompute", "full")]
SKIPPING = [Job(stage, accumulation=stage, nonfinite="1 2") for stage in (1, 2)]
SKIPPING += [Job(3, accumulation=accumulation, nonfinite="1 2") for accumulation in (1, 2)]
SKIPPING_OFFLOADED = [Job(stage, offload=True, nonfinite="1 2") for stage in (2, 3)]
ENDED = Job(2, nonfinite="1 2 3")
OFFLOADED = [Job(stage, offload=True) for stage in (2, 3)]
