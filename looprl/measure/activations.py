"""What autograd keeps of a forward pass, in bytes, found by running the model on tensors that have shapes only."""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, PretrainedConfig

from looprl.gradients import Estimator, token_log_probs
from looprl.models.contract import LoopedForCausalLM


class WeightlessModel:
    """A model of this configuration and precision whose tensors take no memory and hold no numbers."""

    def __init__(self, config: PretrainedConfig, dtype: torch.dtype):
        self._shapes_only = FakeTensorMode()
        with self._shapes_only:
            self.model: LoopedForCausalLM = AutoModelForCausalLM.from_config(config, dtype=dtype)

    @property
    def parameters(self) -> int:
        """How many there are; a tied one counts once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def recorded_bytes(
        self,
        estimator: Estimator,
        num_loops: int,
        batch: int,
        length: int,
        completion_length: int,
        autocast: bool = False,
    ) -> int:
        """Bytes of the tensors saved for the backward pass when a micro-batch is scored, weights left out.

        batch, length: padded sequences and the tokens of each that are fed; the head reads out the last
        `completion_length`. autocast: compute in bf16 on weights that are not; their cast copies count. Attention is
        the fused kind, which keeps no scores. On top come the temporaries of one operation at a time, a few percent.
        """
        held: dict[int, Any] = {}

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            held[storage._cdata] = storage
            return tensor

        casting = torch.autocast("cpu", torch.bfloat16, enabled=autocast)
        with self._shapes_only, torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept), casting:
            self._score(estimator, num_loops, batch, length, completion_length)
        own = {parameter.untyped_storage()._cdata for parameter in self.model.parameters()}
        return sum(storage.nbytes() for place, storage in held.items() if place not in own)

    def _score(self, estimator: Estimator, num_loops: int, batch: int, length: int, completion_length: int) -> None:
        """The forward pass by its parts: the whole would look into the padding mask, which has no values here."""
        ids = torch.zeros(batch, length, dtype=torch.long)
        mask = torch.ones(batch, 1, length, length, dtype=torch.bool)
        base = self.model.model
        context = base.context_at(ids, ids, mask, None)
        injected = base.prelude(ids, None, context)
        state = torch.zeros_like(injected) if estimator.state_from == "rollout" else base.initial_state(injected)
        state = estimator(base.core, state, injected, context, num_loops)
        output = self.model.with_logits(base.finish(state, context), completion_length)
        token_log_probs(output, ids[:, -completion_length:], loop_weights=estimator.loop_weights)
