"""Configuration of `huginn_raven`: Huginn, and the retrofitted Llama and OLMo-2 bodies in the same packaging."""

from collections.abc import Iterable

import torch

from looprl.models.published import Derived, PublishedConfig
from looprl.models.rope import Rope, frequencies

BODIES = ("huginn", "llama", "olmo2")


def body_of(tensor_names: Iterable[str]) -> str:
    """Which body a checkpoint has: the three share one model_type and differ in their tensors."""
    names = list(tensor_names)
    if any(name.endswith(".norm_3.weight") for name in names):
        return "huginn"
    return "olmo2" if any(name.endswith(".attn.q_norm.weight") for name in names) else "llama"


class RavenConfig(PublishedConfig):
    """The published keys, and `body`: which of `BODIES` the tensors are; `load_model` tells it from the tensors.

    Huginn: interleaved RoPE of base `rope_base`, embedding scaled by sqrt(n_embd). The other two: `rope_theta` and
    `rope_scaling`, embedding scaled by `init_values.embed_scale`. `mean_recurrence` is R.
    """

    model_type = "huginn_raven"
    attribute_map = {
        "hidden_size": "n_embd",
        "num_attention_heads": "n_heads",
        "num_prelude_layers": "n_layers_in_prelude",
        "num_core_layers": "n_layers_in_recurrent_block",
        "num_coda_layers": "n_layers_in_coda",
        "num_loops": "mean_recurrence",
        "tie_word_embeddings": "tie_embeddings",
    }

    body: Derived = None
    vocab_size: int = 65536
    padded_vocab_size: Derived = None
    n_embd: int = 5280
    n_heads: int = 55
    head_dim: Derived = None
    intermediate_size: int = 17920
    n_layers_in_prelude: int = 2
    n_layers_in_recurrent_block: int = 4
    n_layers_in_coda: int = 2
    mean_recurrence: int = 32
    block_size: int = 4096
    max_position_embeddings: Derived = None
    norm_eps: float = 1e-6
    rope_base: float = 50000.0
    qk_bias: Derived = None
    tie_embeddings: Derived = None
    init_values: Derived = None
    injection_type: str = "linear"
    mlp_class_name: str = "GatedMLP"
    nonlin_name: str = "SiLU"
    bias: bool = False
    test_time_noise: float = 0

    def derive(self) -> None:
        if self.body is None:
            self.body = "llama" if self.qk_bias is False and self.tie_embeddings is False else "huginn"
        self.require("body", BODIES)
        huginn = self.body == "huginn"
        if self.qk_bias is None:
            self.qk_bias = huginn
        if self.tie_embeddings is None:
            self.tie_embeddings = huginn
        if self.head_dim is None:
            self.head_dim = self.n_embd // max(self.n_heads, 1)
        if self.padded_vocab_size is None:
            self.padded_vocab_size = self.vocab_size
        if self.max_position_embeddings is None:
            self.max_position_embeddings = self.block_size
        if self.init_values is None:
            std = (2 / (5 * self.n_embd)) ** 0.5
            self.init_values = {"std": std, "embedding": std, "out_proj": std / (2 * self.num_hidden_layers) ** 0.5}
        self.require("injection_type", ("linear",))
        self.require("mlp_class_name", ("GatedMLP",))
        self.require("nonlin_name", ("SiLU",))
        self.require("bias", (False,))
        self.require("test_time_noise", (0,))
        self.require("qk_bias", (True, False) if huginn and self.num_key_value_heads == self.n_heads else (False,))

    @property
    def num_hidden_layers(self) -> int:
        """Physical layers: what needs a K/V bank, whatever the number of loops."""
        return self.n_layers_in_prelude + self.n_layers_in_recurrent_block + self.n_layers_in_coda

    @property
    def embedding_scale(self) -> float:
        """Factor on the embeddings."""
        return self.n_embd**0.5 if self.body == "huginn" else self.init_values.get("embed_scale", 1.0)

    @property
    def initial_state_std(self) -> float | None:
        """Standard deviation of drawn initial states, before they are scaled as the embeddings are."""
        return self.init_values.get("std")

    def inverse_frequencies(self) -> tuple[torch.Tensor, float]:
        """As `rope.frequencies`."""
        if self.body == "huginn":
            return frequencies(self.head_dim, self.rope_base)
        return frequencies(self.head_dim, self.rope_theta, self.rope_scaling, self.max_position_embeddings)

    def rope(self) -> Rope:
        """The module that computes the rotary factors."""
        return Rope(self.inverse_frequencies, interleaved=self.body == "huginn")
