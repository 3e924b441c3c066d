"""Configuration of LoopLM, looprl's own looped model."""

from typing import Any

from transformers import PretrainedConfig

NORMS = ("layer", "rms")
NORM_PLACEMENTS = ("pre", "sandwich")
INJECTIONS = ("orthogonal", "linear", "decay", "add")
KV_POLICIES = ("terminal", "per_loop")
LEAST = {
    "num_prelude_layers": 0,
    "num_core_layers": 1,
    "num_coda_layers": 0,
    "num_loops": 1,
    "vocab_size": 1,
    "hidden_size": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 1,
}


class LoopLMConfig(PretrainedConfig):
    """Shapes and choices of a LoopLM.

    num_prelude_layers, num_core_layers, num_coda_layers: blocks before, in and after the loop. num_loops: R.
    norm: `layer` (LayerNorm without bias) or `rms`. norm_placement: `pre`, or `sandwich` (a norm on each
    sublayer's input and on each residual sum). injection: `orthogonal`, `linear`, `decay` or `add` (see
    `injection.py`); injection_init: where the diagonal of the first and third starts, in (0, 1). kv_policy: how
    cached decoding reads earlier tokens, at their last loop (`terminal`) or at the same one (`per_loop`).
    Raises ValueError on an impossible combination.
    """

    model_type = "looplm"
    keys_to_ignore_at_inference = ["past_key_values", "state"]

    def __init__(
        self,
        vocab_size: int = 512,
        hidden_size: int = 64,
        intermediate_size: int = 128,
        num_attention_heads: int = 2,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        num_prelude_layers: int = 1,
        num_core_layers: int = 2,
        num_coda_layers: int = 1,
        num_loops: int = 6,
        norm: str = "layer",
        norm_placement: str = "sandwich",
        norm_eps: float = 1e-6,
        injection: str = "orthogonal",
        injection_init: float = 0.5,
        kv_policy: str = "terminal",
        rope_theta: float = 10000.0,
        max_position_embeddings: int = 1024,
        initializer_scale: float = 0.8,
        tie_word_embeddings: bool = True,
        **kwargs: Any,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_attention_heads if num_key_value_heads is None else num_key_value_heads
        self.head_dim = hidden_size // max(num_attention_heads, 1) if head_dim is None else head_dim
        self.num_prelude_layers = num_prelude_layers
        self.num_core_layers = num_core_layers
        self.num_coda_layers = num_coda_layers
        self.num_loops = num_loops
        self.norm = norm
        self.norm_placement = norm_placement
        self.norm_eps = norm_eps
        self.injection = injection
        self.injection_init = injection_init
        self.kv_policy = kv_policy
        self.rope_theta = rope_theta
        self.max_position_embeddings = max_position_embeddings
        self.initializer_scale = initializer_scale
        self._check()
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)

    @property
    def num_hidden_layers(self) -> int:
        """Physical layers: what needs a K/V bank, whatever the number of loops."""
        return self.num_prelude_layers + self.num_core_layers + self.num_coda_layers

    @property
    def num_embeddings(self) -> int:
        """Rows of the embedding and the head."""
        return self.vocab_size

    @property
    def embedding_scale(self) -> float:
        """Tied embeddings are initialised for the head and scaled up for the input."""
        return self.hidden_size**0.5 if self.tie_word_embeddings else 1.0

    def _check(self) -> None:
        for name, value, choices in (
            ("norm", self.norm, NORMS),
            ("norm_placement", self.norm_placement, NORM_PLACEMENTS),
            ("injection", self.injection, INJECTIONS),
            ("kv_policy", self.kv_policy, KV_POLICIES),
        ):
            if value not in choices:
                raise ValueError(f"LoopLMConfig.{name} is {value!r}; choose from {', '.join(choices)}")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, int):
                raise ValueError(f"LoopLMConfig.{name} must be a whole number, got {value!r}")
            if value < least:
                raise ValueError(f"LoopLMConfig.{name} must be at least {least}, got {value}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"LoopLMConfig.num_key_value_heads ({self.num_key_value_heads}) must divide "
                f"num_attention_heads ({self.num_attention_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"LoopLMConfig.head_dim must be even for rotary positions, got {self.head_dim}")
        if not 0 < self.injection_init < 1:
            raise ValueError(f"LoopLMConfig.injection_init must lie in (0, 1), got {self.injection_init}")
