"""The rollout engine in the trainer's process, behind the two calls that TRL makes.

An engine that fails or stops answering is replaced by a new one with the trainer's present weights, which is asked
again; so are those of the other processes that train together, since starting and giving weights is done by all at
once. A failure that the new engine repeats ends the run.
"""

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

from torch import nn

from looprl.measure.meter import StepMeter
from looprl.rollout.engine import RolloutEngine
from looprl.rollout.random_state import rollout_seed
from looprl.rollout.record import RolloutRecord
from looprl.rollout.sampling import RolloutError, Sampling
from looprl.training.zero import gathered

_Result = TypeVar("_Result")
_logger = logging.getLogger(__name__)


class ColocatedRollouts:
    """Syncs the trainer's weights into the engine, samples, and keeps the records of the last rollout."""

    def __init__(
        self,
        start_engine: Callable[[], RolloutEngine],
        model: nn.Module,
        sampling: Sampling,
        *,
        pad_token_id: int,
        bos_token_id: int | None,
        seed: int,
        rank: int,
        step: Callable[[], int],
        meter: StepMeter,
        any_process: Callable[[bool], bool] = bool,
        may_restart: bool = True,
    ):
        """start_engine: starts one, now and after a failure. may_restart: False where several processes share it.

        step: gives the trainer's optimizer step, which is the policy version of what is sampled next. any_process:
        whether something is true in one process at least, of those that train together.
        """
        self.start_engine, self.model, self.sampling = start_engine, model, sampling
        self.engine, self.any_process, self.may_restart = start_engine(), any_process, may_restart
        self.restarts = 0
        self.pad_token_id, self.bos_token_id = pad_token_id, bos_token_id
        self.seed, self.rank, self.step, self.meter = seed, rank, step, meter
        self._records: list[RolloutRecord] = []
        self._drawn_at = -1  # the step of the last rollout, and its number among those of that step
        self.index = 0

    def sync_weights(self) -> None:
        """Give the engine the trainer's present weights."""
        with self.meter.phase("sync"):
            self._attempt(self._sync)

    def ask(self, call: Callable[[RolloutEngine], _Result]) -> _Result:
        """Call with the engine; if that costs the engine its life, once more with a new one and present weights.

        Every process has to, each with a call of its own.
        """
        results = self._attempt(call)
        return results[0] if results else call(self.engine)

    def _attempt(self, call: Callable[[RolloutEngine], _Result]) -> list[_Result]:
        """What the call gives; nothing where it costs the engine its life.

        When it does so here or in another process, every process has a new one with present weights afterwards.
        """
        was_closed = self.engine.closed
        results = []
        try:
            results.append(call(self.engine))
        except Exception as error:
            if was_closed or not self.engine.closed or not self.may_restart:
                raise  # refused by an engine that is as it was
            _logger.warning("the rollout engine failed (%s: %s); starting a new one", type(error).__name__, error)
        failed = not results
        self.restarts += failed
        self.meter.count("dropped/engine_restarts", failed)
        if self.any_process(failed):
            self.engine = self.start_engine()
            self._sync(self.engine)
        return results

    def _sync(self, engine: RolloutEngine) -> None:
        weights = gathered(self.model)
        try:
            engine.sync_weights(weights, self.step())
        finally:
            for _ in weights:  # where the engine has failed: the other processes gather them all
                pass

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
        seconds = self.meter.seconds()
        with self.meter.phase("rollout"), profiler or nullcontext():
            step = self.step()
            self._drawn_at, self.index = step, self.index + 1 if step == self._drawn_at else 0
            seed = rollout_seed(self.seed, step, self.rank, self.index)
            self._records = self.ask(lambda engine: self._draw(engine, prompts, seed))
        self._measure(self.meter.seconds() - seconds)
        completions = [list(record.completion_ids) or [self.pad_token_id] for record in self._records]
        logprobs = [[[value] for value in record.logprobs.tolist()] or [[0.0]] for record in self._records]
        return prompts, completions, logprobs, None

    def _draw(self, engine: RolloutEngine, prompts: list[list[int]], seed: int) -> list[RolloutRecord]:
        preempted = engine.preempted
        records = engine.generate(prompts, self.sampling, seed)
        self.meter.count("dropped/preempted", (engine.preempted - preempted) / engine.ranks)
        return records

    def _measure(self, seconds: float) -> None:
        """Log how fast one engine sampled, and what it kept of a token."""
        tokens = sum(len(record.completion_ids) for record in self._records) * self.engine.ranks
        states = [record.states for record in self._records]
        self.meter.mean("rollout/tokens_per_second", tokens, seconds)
        self.meter.maximum("rollout/kv_bytes_per_token", self.engine.kv_bytes_per_token)
        self.meter.mean("rollout/state_bytes_per_token", sum(each.nbytes for each in states), sum(map(len, states)))

    def peek(self) -> list[RolloutRecord]:
        """The records of the last rollout."""
        return self._records

    def forget(self) -> None:
        """Let go of those records, and with them of their states."""
        self._records = []
