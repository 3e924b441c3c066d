"""The looped-model contract: what gradients, rollouts and training may rely on.

    e      = prelude(tokens)                 [B, T, d]
    z_0    = initial_state(e)                [B, T, d]
    z_r    = core(z_{r-1}, e, *context)      r = 1..R
    hidden = coda(z_R, context)              [B, T, d], final norm included
    logits = lm_head(hidden)

A family is one module that subclasses `LoopedModel` (the base model) and `LoopedForCausalLM`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from looprl.models.kv_bank import KVBank, make_kv_bank
from looprl.models.loop import Core, LoopContext, LoopRunner, run_loops
from looprl.models.positions import positions_and_mask

Part = Literal["prelude", "injection", "core", "coda", "head"]


def at_least_fp32(logits: Tensor) -> Tensor:
    """Logits ready for a softmax: half precision is raised, double is kept."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


@dataclass
class LoopedModelOutput(ModelOutput):
    """hidden: [B, T, d] after coda and final norm; state: z_R [B, T, d].

    Where every loop is read out, also loop_hidden: [R, B, T, d], and of a family with an exit gate
    gate_logits: [B, T, R].
    """

    last_hidden_state: Tensor | None = None
    state: Tensor | None = None
    past_key_values: Cache | None = None
    loop_hidden: Tensor | None = None
    gate_logits: Tensor | None = None


@dataclass
class LoopedCausalLMOutput(ModelOutput):
    """logits: [B, T, V] (or the last `logits_to_keep` positions); state: z_R [B, T, d].

    Where every loop is read out, also loop_logits: [R, B, T, V], and of a family with an exit gate
    gate_logits: [B, T, R], both of the same positions.
    """

    logits: Tensor | None = None
    state: Tensor | None = None
    past_key_values: Cache | None = None
    loop_logits: Tensor | None = None
    gate_logits: Tensor | None = None


@dataclass(frozen=True)
class Family:
    """What `looprl models` says of a family. An empty reason means yes; otherwise it says why not.

    title, loop: in words. examples: hub names. no_reuse, no_terminal_kv, no_per_loop_kv, no_exit_gate: reasons.
    untrained: parameters of the exit gate (how their names begin), and why RL leaves them as they are where it does not
    weight the loops by it; unreplayed: those that only an estimator which records every loop reaches.
    """

    title: str
    examples: tuple[str, ...]
    loop: str
    no_reuse: str = ""
    no_terminal_kv: str = ""
    no_per_loop_kv: str = ""
    no_exit_gate: str = "the model has none"
    untrained: Mapping[str, str] = field(default_factory=dict)
    unreplayed: Mapping[str, str] = field(default_factory=dict)


class LoopedModel(PreTrainedModel):
    """Base model: embedding, prelude, core, coda and final norm. See the module's docstring for the parts."""

    core: Core

    def context(self, input_ids: Tensor, attention_mask: Tensor | None, cache: Cache | None = None) -> LoopContext:
        """What attention needs for `input_ids` [B, T]; `attention_mask` [B, past + T], 0 for padding."""
        past = 0 if cache is None else cache.get_seq_length()
        positions, mask = positions_and_mask(input_ids, attention_mask, past)
        bank = None
        if cache is not None:
            bank = make_kv_bank(self.config.kv_policy, cache, self.config.num_hidden_layers)
        return self.context_at(input_ids, positions, mask, bank)

    def context_at(self, input_ids: Tensor, positions: Tensor, mask: Tensor | None, bank: KVBank | None) -> LoopContext:
        """The context of tokens `input_ids` at `positions`, both [B, T]; the rollout engine gives its own bank."""
        raise NotImplementedError

    def prelude(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, context: LoopContext | None = None
    ) -> Tensor:
        """The injected input e [B, T, d]."""
        raise NotImplementedError

    def initial_state(self, injected: Tensor) -> Tensor:
        """z_0 [B, T, d]: zero unless the family says otherwise."""
        return torch.zeros_like(injected)

    def coda(self, state: Tensor, context: LoopContext) -> Tensor:
        """Hidden states [B, T, d] ready for the head: coda blocks, then the final norm."""
        raise NotImplementedError

    def exit_gate(self, states: Tensor) -> Tensor | None:
        """Logits [B, T, R] of stopping at each of `states` [R, B, T, d]; None in a family without an exit gate."""
        return None

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        num_loops: int | None = None,
        initial_state: Tensor | None = None,
        loop_runner: LoopRunner = run_loops,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> LoopedModelOutput:
        """Prelude, loops, coda.

        `num_loops` defaults to the configuration's; `initial_state` [B, T, d] to z_0. `loop_runner` replaces the
        plain loops by a gradient estimator (`looprl.gradients.Estimator`). ValueError on a state of another shape
        or a number of loops below 1.
        """
        num_loops = self.config.num_loops if num_loops is None else num_loops
        if num_loops < 1:
            raise ValueError(f"num_loops must be at least 1, got {num_loops}")
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        context = self.context(input_ids, attention_mask, past_key_values)
        injected = self.prelude(input_ids, attention_mask, context)
        state = self.initial_state(injected) if initial_state is None else initial_state
        if state.shape != injected.shape:
            raise ValueError(
                f"initial_state has shape {tuple(state.shape)}, but the input needs {tuple(injected.shape)}: "
                "one state of the model's width per token"
            )
        output = self.finish(loop_runner(self.core, state.to(injected.dtype), injected, context, num_loops), context)
        output.past_key_values = past_key_values
        return output

    def finish(self, state: Tensor, context: LoopContext) -> LoopedModelOutput:
        """What comes after the loops, for z_R [B, T, d] or for the states of every loop [R, B, T, d]."""
        if state.ndim == 3:
            return LoopedModelOutput(self.coda(state, context), state)
        hidden = torch.stack([self.coda(each, context) for each in state])
        return LoopedModelOutput(hidden[-1], state[-1], None, hidden, self.exit_gate(state))


class LoopedForCausalLM(PreTrainedModel, GenerationMixin):
    """Looped model with a language-model head; `model` is the family's `LoopedModel`."""

    base_model_prefix = "model"
    model: LoopedModel
    lm_head: nn.Linear
    MODEL: ClassVar[type[LoopedModel]]
    FAMILY: ClassVar[Family]
    # how the names of a part's parameters begin; of several that fit, the longest counts
    PARTS: ClassVar[dict[str, Part]]
    # how published tensor names begin -> how they begin here; saving writes the published ones
    RENAMES: ClassVar[dict[str, str]] = {}
    # what wrappers put before published tensor names
    STRIPPED: ClassVar[tuple[str, ...]] = ()
    # published tensors that are computed instead
    RECOMPUTED: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: PretrainedConfig):
        super().__init__(config)
        self.model = self.MODEL(config)
        self.lm_head = nn.Linear(config.hidden_size, config.num_embeddings, bias=False)
        self.post_init()

    @classmethod
    def read_config(cls, settings: Mapping[str, Any], tensor_names: Iterable[str]) -> PretrainedConfig:
        """The configuration in a `config.json` beside tensors of these (published) names. ValueError if impossible."""
        return cls.config_class.from_dict(dict(settings))

    @classmethod
    def published_name(cls, own: str) -> str:
        """The published name of a tensor here."""
        for published, here in cls.RENAMES.items():
            if own.startswith(here):
                return published + own.removeprefix(here)
        return own

    def parameters_by_part(self) -> dict[str, list[str]]:
        """Names of the trainable parameters of each part that has any; a tied embedding counts as the head."""
        tied = self.config.tie_word_embeddings
        names: dict[str, list[str]] = {part: [] for part in get_args(Part)}
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                prefix = max((prefix for prefix in self.PARTS if name.startswith(prefix)), key=len)
                is_head = tied and parameter is self.lm_head.weight
                names["head" if is_head else self.PARTS[prefix]].append(name)
        return {part: of_part for part, of_part in names.items() if of_part}

    def left_as_they_are(self, loops_recorded: int | None, weighted_by_exit: bool = False) -> dict[str, str]:
        """Trainable parameters that RL does not move, and why, when so many loops are recorded (None: all of them).

        weighted_by_exit: whether the loss weights the log-probs of the loops by the exit distribution.
        """
        reasons = {} if weighted_by_exit else dict(self.FAMILY.untrained)
        reasons |= {} if loops_recorded is None else dict(self.FAMILY.unreplayed)
        return {
            name: reason
            for name, parameter in self.named_parameters()
            for prefix, reason in reasons.items()
            if name.startswith(prefix) and parameter.requires_grad and parameter is not self.lm_head.weight
        }

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        num_loops: int | None = None,
        initial_state: Tensor | None = None,
        loop_runner: LoopRunner = run_loops,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> LoopedCausalLMOutput:
        """As `LoopedModel.forward`, then the head on the last `logits_to_keep` positions (0: on all).

        A vocabulary may be padded. With `logits_to_keep` the columns beyond `vocab_size` are -inf, as such logits are
        for sampling or for scoring what was sampled; without it they are the checkpoint's own.
        """
        output = self.model(
            input_ids,
            attention_mask,
            num_loops=num_loops,
            initial_state=initial_state,
            loop_runner=loop_runner,
            past_key_values=past_key_values,
            use_cache=use_cache,
        )
        return self.with_logits(output, logits_to_keep)

    def with_logits(self, output: LoopedModelOutput, logits_to_keep: int = 0) -> LoopedCausalLMOutput:
        """The base model's output with the head's on the last `logits_to_keep` positions: see `forward`."""
        every_loop = output.loop_hidden is not None
        hidden = output.loop_hidden if every_loop else output.last_hidden_state
        assert hidden is not None
        logits = self.read_out(hidden[..., -logits_to_keep:, :])
        if logits_to_keep and logits.shape[-1] > self.config.vocab_size:
            padding = torch.arange(logits.shape[-1], device=logits.device) >= self.config.vocab_size
            logits = logits.masked_fill(padding, float("-inf"))
        if not every_loop:
            return LoopedCausalLMOutput(logits, output.state, output.past_key_values)
        gate = None if output.gate_logits is None else output.gate_logits[:, -logits_to_keep:]
        return LoopedCausalLMOutput(logits[-1], output.state, output.past_key_values, logits, gate)

    def read_out(self, hidden: Tensor) -> Tensor:
        """Logits of hidden states that `coda` returned."""
        return self.lm_head(hidden)
