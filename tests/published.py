"""Random models of the published families with 32-wide heads, which vLLM needs on a CPU."""

from pathlib import Path
from typing import Any

import torch

from looprl.data.tokenizer import build_tokenizer
from looprl.models import FAMILIES, LoopedForCausalLM

RAVEN = dict(
    vocab_size=97,
    n_embd=64,
    n_heads=2,
    intermediate_size=96,
    n_layers_in_prelude=1,
    n_layers_in_recurrent_block=2,
    n_layers_in_coda=1,
    mean_recurrence=3,
    block_size=256,
)
LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)
GROUPED = dict(n_heads=4, num_key_value_heads=2, head_dim=32)
INIT = dict(std=0.1, embedding=0.3, out_proj=0.1)

OURO = dict(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    total_ut_steps=3,
    max_position_embeddings=256,
    initializer_range=0.15,
)

PARCAE = dict(
    vocab_size=97,
    padded_vocab_size=128,
    n_embd=64,
    num_attention_heads=2,
    num_key_value_heads=1,
    intermediate_size=96,
    recurrent_intermediation_embedding_dimension=80,
    n_layers_in_prelude=1,
    n_layers_in_recurrent_block=2,
    n_layers_in_coda=2,
    mean_recurrence=3,
    block_size=256,
    logit_softcap=20.0,
)

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "huginn": ("huginn_raven", RAVEN),
    "llama": ("huginn_raven", RAVEN | GROUPED | dict(body="llama", rope_scaling=LLAMA3, init_values=INIT)),
    "olmo2": ("huginn_raven", RAVEN | dict(body="olmo2", init_values=INIT)),
    "ouro": ("ouro", OURO),
    "parcae": ("parcae", PARCAE),
}


def random_published(name: str, **changes: Any) -> LoopedForCausalLM:
    """A small model of one of `MODELS` whose every tensor is random, norms and biases too."""
    model_type, settings = MODELS[name]
    family = FAMILIES[model_type]
    torch.manual_seed(0)
    model = family(family.config_class(**(settings | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim in (1, 4):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def published_with_tokenizer(name: str, **changes: Any) -> LoopedForCausalLM:
    """A `random_published` whose vocabulary is that of the project's tokenizer."""
    tokenizer = build_tokenizer()
    vocabulary = {"vocab_size": len(tokenizer)} | ({"padded_vocab_size": 512} if name == "parcae" else {})
    special_tokens = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "bos", "eos")}
    return random_published(name, **vocabulary, **special_tokens, **changes)


def save_published(name: str, folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """Write a `published_with_tokenizer` and the tokenizer to a folder in the published format."""
    published_with_tokenizer(name, **changes).to(dtype).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder
