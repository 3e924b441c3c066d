"""Configuration of Ouro."""

from torch import Tensor

from looprl.models.published import Derived, PublishedConfig
from looprl.models.rope import frequencies


class OuroConfig(PublishedConfig):
    """The published keys; `total_ut_steps` is R. K/V are kept per loop, as published, unless `kv_policy` is set."""

    model_type = "ouro"
    attribute_map = {"num_loops": "total_ut_steps"}

    vocab_size: int = 49152
    hidden_size: int = 2048
    intermediate_size: int = 5632
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    head_dim: Derived = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1000000.0
    max_position_embeddings: int = 65536
    tie_word_embeddings: bool = False
    use_sliding_window: bool = False
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    total_ut_steps: int = 4
    kv_policy: str = "per_loop"

    def derive(self) -> None:
        if self.head_dim is None:
            self.head_dim = self.hidden_size // max(self.num_attention_heads, 1)
        self.require("hidden_act", ("silu",))
        self.require("use_sliding_window", (False, None))
        self.require("attention_dropout", (0, None))

    @property
    def num_core_layers(self) -> int:
        """All of them."""
        return self.num_hidden_layers

    @property
    def num_prelude_layers(self) -> int:
        """None."""
        return 0

    def inverse_frequencies(self) -> tuple[Tensor, float]:
        """As `rope.frequencies`."""
        return frequencies(self.head_dim, self.rope_theta, self.rope_scaling, self.max_position_embeddings)
