"""The rollout engine in the trainer's process, behind the two calls that TRL makes."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch import nn

from looprl.measure.meter import StepMeter
from looprl.rollout.engine import RolloutEngine, RolloutError, Sampling
from looprl.rollout.random_state import rollout_seed
from looprl.rollout.record import RolloutRecord
from looprl.training.zero import gathered


class ColocatedRollouts:
    """Syncs the trainer's weights into the engine, samples, and keeps the records of the last rollout."""

    def __init__(
        self,
        engine: RolloutEngine,
        model: nn.Module,
        sampling: Sampling,
        *,
        pad_token_id: int,
        bos_token_id: int | None,
        seed: int,
        rank: int,
        step: Callable[[], int],
        meter: StepMeter,
    ):
        """step: gives the trainer's optimizer step, which is the policy version of what is sampled next."""
        self.engine, self.model, self.sampling = engine, model, sampling
        self.pad_token_id, self.bos_token_id = pad_token_id, bos_token_id
        self.seed, self.rank, self.step, self.meter = seed, rank, step, meter
        self._records: list[RolloutRecord] = []
        self._drawn_at = -1  # the step of the last rollout, and its number among those of that step
        self.index = 0

    def sync_weights(self) -> None:
        """Give the engine the trainer's present weights."""
        with self.meter.phase("sync"):
            self.engine.sync_weights(gathered(self.model), self.step())

    def generate(
        self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None
    ) -> tuple[list[list[int]], list[list[int]], list[list[list[float]]], None]:
        """Sample one completion for each prompt (TRL repeats a group's prompt itself).

        TRL reads the last token of every completion, so one without tokens is shown to it as a single padding
        token, which the trainer masks. RolloutError on a prompt that starts with
        two BOS tokens.
        """
        if images is not None:
            raise RolloutError("looprl samples from text only, but the dataset has images")
        for prompt in prompts:
            if self.bos_token_id is not None and prompt[:2] == [self.bos_token_id] * 2:
                raise RolloutError(
                    "a prompt starts with two BOS tokens: the tokenizer adds one, so leave it out of the text "
                    "or of the chat template"
                )
        preempted = self.engine.preempted
        with self.meter.phase("rollout"), profiler or nullcontext():
            step = self.step()
            self._drawn_at, self.index = step, self.index + 1 if step == self._drawn_at else 0
            seed = rollout_seed(self.seed, step, self.rank, self.index)
            self._records = self.engine.generate(prompts, self.sampling, seed)
        self.meter.count("dropped/preempted", (self.engine.preempted - preempted) / self.engine.ranks)
        completions = [list(record.completion_ids) or [self.pad_token_id] for record in self._records]
        logprobs = [[[value] for value in record.logprobs.tolist()] or [[0.0]] for record in self._records]
        return prompts, completions, logprobs, None

    def peek(self) -> list[RolloutRecord]:
        """The records of the last rollout."""
        return self._records
