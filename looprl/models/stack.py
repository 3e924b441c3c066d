"""What families of the common build share: an injection in the core, blocks before and after it, one norm at the end.

A family fills in the modules; what it does between the parts it adds around `prelude` and `coda`.
"""

from typing import Any

from torch import Tensor, nn

from looprl.models.contract import LoopedModel, Part
from looprl.models.loop import Core, LoopContext

# see `LoopedForCausalLM.PARTS`
STACK_PARTS: dict[str, Part] = {
    "model.embed_tokens.": "prelude",
    "model.prelude_layers.": "prelude",
    "model.core.": "core",
    "model.core.injection.": "injection",
    "model.coda_layers.": "coda",
    "model.norm.": "coda",
    "lm_head.": "head",
}


class InjectedCore(Core):
    """F: the injection, then the core blocks."""

    injection: nn.Module
    layers: nn.ModuleList

    def loop(self, state: Tensor, injected: Tensor, *context: Any) -> Tensor:
        x = self.injection(state, injected)
        for layer in self.layers:
            x = layer(x, LoopContext(*context))
        return x


class StackModel(LoopedModel):
    """Embedding, prelude blocks, core, coda blocks and final norm."""

    embed_tokens: nn.Embedding
    prelude_layers: nn.ModuleList
    coda_layers: nn.ModuleList
    norm: nn.Module
    gradient_checkpointing = False  # of prelude and coda; the adjoint's products need the core's activations

    def run_layers(self, layers: nn.ModuleList, x: Tensor, context: LoopContext) -> Tensor:
        """Apply blocks one after the other: x [B, T, d]."""
        for layer in layers:
            if self.gradient_checkpointing and self.training:
                x = self._gradient_checkpointing_func(layer.__call__, x, context)
            else:
                x = layer(x, context)
        return x

    def prelude(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, context: LoopContext | None = None
    ) -> Tensor:
        context = self.context(input_ids, attention_mask) if context is None else context
        return self.run_layers(self.prelude_layers, self.embed_tokens(input_ids) * self.config.embedding_scale, context)

    def coda(self, state: Tensor, context: LoopContext) -> Tensor:
        return self.norm(self.run_layers(self.coda_layers, state, context))
