"""A retrofitted body is that of transformers' own Llama or OLMo-2: one loop that reads only e is the plain model."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Olmo2Config, Olmo2ForCausalLM

from tests.published import LLAMA3, random_published

PLAIN = {
    "llama": (LlamaConfig, LlamaForCausalLM, "input_layernorm", "post_attention_layernorm"),
    "olmo2": (Olmo2Config, Olmo2ForCausalLM, "post_attention_layernorm", "post_feedforward_layernorm"),
}
SCALINGS = {
    "plain": None,
    "llama3": LLAMA3,
    "yarn": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64),
    "linear": dict(type="linear", factor=2.0),
}


def plain_model(looped, body, scaling):
    """transformers' model with the layers of `looped` one after another."""
    config_class, model_class, first_norm, second_norm = PLAIN[body]
    ours, inner = looped.config, looped.model
    rope = {"rope_type": "default"} if scaling is None else {"rope_type": scaling.get("type", "")} | scaling
    rope.pop("type", None)
    layers = [*inner.prelude_layers, *inner.core.layers, *inner.coda_layers]
    config = config_class(
        vocab_size=ours.vocab_size,
        hidden_size=ours.n_embd,
        intermediate_size=ours.intermediate_size,
        num_hidden_layers=len(layers),
        num_attention_heads=ours.n_heads,
        num_key_value_heads=ours.num_key_value_heads,
        head_dim=ours.head_dim,
        max_position_embeddings=ours.max_position_embeddings,
        rms_norm_eps=ours.norm_eps,
        rope_parameters=rope | {"rope_theta": ours.rope_theta},
        tie_word_embeddings=False,
    )
    weights = {
        "model.embed_tokens.weight": inner.embed_tokens.weight,
        "model.norm.weight": inner.norm.weight,
        "lm_head.weight": looped.lm_head.weight,
    }
    for number, layer in enumerate(layers):
        names = [f"self_attn.{name}_proj" for name in "qkv"] + ["mlp.gate_proj", "mlp.up_proj"]
        split = [*layer.attn.Wqkv.weight.split(layer.attn.widths), *layer.mlp.fc.weight.chunk(2)]
        held = dict(zip(names, split, strict=True))
        held |= {"self_attn.o_proj": layer.attn.proj.weight, "mlp.down_proj": layer.mlp.proj.weight}
        held |= {first_norm: layer.norm_1.weight, second_norm: layer.norm_2.weight}
        if body == "olmo2":
            held |= {f"self_attn.{name}_norm": getattr(layer.attn, f"{name}_norm").weight for name in "qk"}
        weights |= {f"model.layers.{number}.{name}.weight": weight for name, weight in held.items()}
    model = model_class(config).eval()
    model.load_state_dict(weights)
    return model


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
@pytest.mark.parametrize("body", PLAIN)
@torch.no_grad()
def test_one_loop_that_reads_only_the_injected_input_is_the_plain_model(body, scaling):
    looped = random_published(body, rope_scaling=scaling)
    adapter = looped.model.core.injection.adapter.weight
    adapter.copy_(torch.cat([torch.zeros(64, 64), torch.eye(64)], dim=1))
    ids = torch.randint(97, (2, 150), generator=torch.Generator().manual_seed(0))
    expected = plain_model(looped, body, scaling)(ids).logits
    assert expected.std() > 0.05
    # it forgets the state, so any number of loops is one
    for num_loops in (1, 3):
        torch.testing.assert_close(looped(ids, num_loops=num_loops).logits, expected, rtol=0, atol=1e-4)
    if scaling is not None:
        assert (plain_model(looped, body, None)(ids).logits - expected).abs().max() > 1e-2
