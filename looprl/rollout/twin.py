"""What every vLLM twin shares: the head, the state export, and loading under the names of the transformers model."""

from collections.abc import Iterable
from typing import ClassVar, get_args

from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.models.extract_hidden_states import CacheOnlyAttentionLayer

from looprl.rollout.connector import STATE_CACHE
from looprl.rollout.record import StateKind

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Twin(nn.Module):
    """A looped model with head and state export: the state named by `config.exported_state` goes to the paged cache.

    INNER is what vLLM compiles: tokens, positions [N] -> hidden states and every `StateKind` that it has, each [N, d].
    WITHIN is how its parameters' names begin in the twin, where the transformers model has `model.`.
    """

    INNER: ClassVar[type[nn.Module]]
    WITHIN: ClassVar[str] = "model."

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.exported = get_args(StateKind).index(config.exported_state)
        self.tied_head = config.tie_word_embeddings
        self.vocab_size = config.vocab_size
        self.model = self.INNER(vllm_config=vllm_config)
        self.lm_head = ParallelLMHead(config.num_embeddings, config.hidden_size)
        self.logits_processor = LogitsProcessor(config.num_embeddings, soft_cap=getattr(config, "logit_softcap", None))
        self.state_cache = CacheOnlyAttentionLayer(
            num_heads=1,
            head_size=config.hidden_size,
            cache_config=vllm_config.cache_config,
            prefix=f"{STATE_CACHE}.{config.num_hidden_layers * config.num_loops}",
        )

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.get_submodule(self.WITHIN + "embed_tokens")(input_ids)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        intermediate_tensors: None = None,
        inputs_embeds: None = None,
    ) -> Tensor:
        hidden, *states = self.model(input_ids, positions)
        if get_forward_context().attn_metadata is not None:  # None in vLLM's profiling run, before there is a cache
            self.state_cache(states[self.exported].unsqueeze(1))
        return hidden

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Of the vocabulary itself: the columns that pad it are never sampled."""
        return self.logits_processor(self.lm_head, hidden_states)[..., : self.vocab_size]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load every tensor of the model, under its transformers name; ValueError on an unknown or a missing one.

        A tied head is a copy here: on CPU vLLM packs the head's weight, and a shared tensor would keep the
        packed values of the previous sync.
        """
        parameters = dict(self.named_parameters())
        loaded = set()
        for source, tensor in weights:
            copies = (source, HEAD) if self.tied_head and source == EMBEDDING else (source,)
            for copy in copies:
                name = self.WITHIN + copy.removeprefix("model.") if copy.startswith("model.") else copy
                if name not in parameters:
                    raise ValueError(f"{type(self).__name__} has no tensor {copy!r}")
                parameter = parameters[name]
                getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor)
                loaded.add(name)
        if missing := sorted(set(parameters) - loaded):
            raise ValueError(f"{type(self).__name__} was not given {len(missing)} of its tensors: {missing[0]}, ...")
        return loaded
