"""Configuration of Parcae, whose published files name no model_type."""

import re
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from looprl.models.published import Derived, PublishedConfig
from looprl.models.rope import frequencies

TABLE = re.compile(r"value_embeds\.(\d+)\.weight")
GATE = re.compile(r"transformer\.(prelude|core_block|coda)\.(\d+)\.attn\.ve_gate\.weight")


class ParcaeConfig(PublishedConfig):
    """The published keys, `mean_recurrence` being R, and which layers have what adds to their values.

    value_tables, value_gates: numbers of the physical layers that have a table of value embeddings and a gate for it;
    `load_model` tells them from the tensors. Without tensors both are every second layer, the last one included.
    """

    model_type = "parcae"
    attribute_map = {
        "hidden_size": "n_embd",
        "num_prelude_layers": "n_layers_in_prelude",
        "num_core_layers": "n_layers_in_recurrent_block",
        "num_coda_layers": "n_layers_in_coda",
        "num_loops": "mean_recurrence",
        "max_position_embeddings": "block_size",
        "tie_word_embeddings": "tie_embeddings",
    }

    _class_name: str = "ParcaeConfig"
    vocab_size: int = 32768
    padded_vocab_size: Derived = None
    n_embd: int = 768
    num_attention_heads: int = 6
    intermediate_size: int = 3072
    n_layers_in_prelude: int = 2
    n_layers_in_recurrent_block: int = 2
    n_layers_in_coda: int = 2
    mean_recurrence: int = 8
    block_size: int = 2048
    norm_eps: float = 1e-5
    prelude_norm: bool = True
    qk_norm: bool = True
    qk_bias: bool = False
    clip_qkv: float | None = None
    logit_softcap: float | None = None
    tie_embeddings: Derived = None
    init_strategy: str = "scaled-zero"
    state_init: str = "like-init"
    injection_type: str = "diagonal"
    recurrent_embedding_dimension: Derived = None
    recurrent_intermediation_embedding_dimension: Derived = None
    recurrent_num_attention_heads: int | None = None
    rope_settings: Derived = None
    block_class_name: str = "TransformerPreNormBlock"
    norm_class_name: str = "RMSNorm"
    mlp_class_name: str = "BaseMLP"
    nonlin_name: str = "ReLU2"
    bias: bool = False
    value_tables: Derived = None
    value_gates: Derived = None

    def derive(self) -> None:
        if self.padded_vocab_size is None:
            self.padded_vocab_size = self.vocab_size
        if self.tie_embeddings is None:
            self.tie_embeddings = True
        if self.recurrent_embedding_dimension is None:
            self.recurrent_embedding_dimension = self.n_embd
        if self.recurrent_intermediation_embedding_dimension is None:
            self.recurrent_intermediation_embedding_dimension = self.intermediate_size
        if self.rope_settings is None:
            self.rope_settings = {"use_rope": True, "rope_base": 50000, "rope_condense_ratio": 1}
        every_second = list(range((self.num_hidden_layers - 1) % 2, self.num_hidden_layers, 2))
        self.value_tables = every_second if self.value_tables is None else self.value_tables
        self.value_gates = every_second if self.value_gates is None else self.value_gates
        self._refuse_what_is_not_run()

    def _refuse_what_is_not_run(self) -> None:
        self.require("recurrent_embedding_dimension", (self.n_embd,))
        self.require("recurrent_num_attention_heads", (None, self.num_attention_heads))
        self.require("injection_type", ("diagonal", "linear", "add"))
        self.require("init_strategy", ("scaled-zero", "takase"))
        self.require("block_class_name", ("TransformerPreNormBlock",))
        self.require("norm_class_name", ("RMSNorm",))
        self.require("mlp_class_name", ("BaseMLP",))
        self.require("nonlin_name", ("ReLU2",))
        self.require("bias", (False,))
        self.require("qk_bias", (True, False) if self.num_key_value_heads == self.num_attention_heads else (False,))
        if not self.rope_settings.get("use_rope", True):
            raise ValueError("ParcaeConfig.rope_settings has use_rope = false; supported: true")

    @staticmethod
    def layers_in(settings: dict[str, Any], tensor_names: Iterable[str]) -> dict[str, list[int]]:
        """`value_tables` and `value_gates` of a checkpoint's tensors."""
        names = list(tensor_names)
        prelude, core = settings.get("n_layers_in_prelude", 0), settings.get("n_layers_in_recurrent_block", 0)
        first = {"prelude": 0, "core_block": prelude, "coda": prelude + core}
        tables = [int(found[1]) for name in names if (found := TABLE.fullmatch(name))]
        gates = [first[found[1]] + int(found[2]) for name in names if (found := GATE.fullmatch(name))]
        return {"value_tables": sorted(tables), "value_gates": sorted(gates)}

    @property
    def num_hidden_layers(self) -> int:
        """Physical layers: what needs a K/V bank, whatever the number of loops."""
        return self.n_layers_in_prelude + self.n_layers_in_recurrent_block + self.n_layers_in_coda

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.n_embd // max(self.num_attention_heads, 1)

    @property
    def embedding_scale(self) -> float:
        """Factor on the embeddings."""
        return self.n_embd**0.5 if self.init_strategy == "takase" else 1.0

    @property
    def value_layers(self) -> list[int]:
        """Layers whose values a table adds to: those with both a table and a gate."""
        return sorted(set(self.value_tables) & set(self.value_gates))

    @property
    def initial_state_std(self) -> float | None:
        """Standard deviation of drawn initial states, before they are scaled as the embeddings are."""
        return (2 / (5 * self.n_embd)) ** 0.5 if self.state_init == "like-init" else None

    def inverse_frequencies(self) -> tuple[Tensor, float]:
        """As `rope.frequencies`."""
        found, factor = frequencies(self.head_dim, self.rope_settings.get("rope_base", 50000))
        return found / self.rope_settings.get("rope_condense_ratio", 1), factor
