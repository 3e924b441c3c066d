"""One rollout engine of several ranks, for a model that does not fit into one device: vLLM's tensor parallelism."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PretrainedConfig

from looprl.rollout.engine import RolloutEngine
from looprl.rollout.record import RolloutRecord
from looprl.rollout.sampling import Sampling


class SharedEngine(RolloutEngine):
    """`RolloutEngine`, each of whose ranks has a shard of the weights and the keys and values of its heads.

    Neighbouring ranks share one. They make every call together, each with its own prompts, and each gets the records
    of its own back: all prompts are sampled as one batch, with the first rank's seed.
    """

    def __init__(self, config: PretrainedConfig, *, ranks: int, **options: Any):
        """Start this rank's part of the engine; the other `ranks` - 1 have to be started at the same time."""
        super().__init__(
            config, tensor_parallel_size=ranks, distributed_executor_backend="external_launcher", **options
        )
        self.ranks = ranks

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int) -> list[RolloutRecord]:
        from vllm.distributed import get_tp_group

        group = get_tp_group()
        shares: list[Any] = [None] * self.ranks
        torch.distributed.all_gather_object(shares, (list(prompts), seed), group=group.cpu_group)
        everyone = [prompt for share, _ in shares for prompt in share]
        records = super().generate(everyone, sampling, shares[0][1])
        first = sum(len(share) for share, _ in shares[: group.rank_in_group])
        return records[first : first + len(prompts)]
