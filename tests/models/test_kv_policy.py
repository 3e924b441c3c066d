"""Per-loop KV: every loop reads earlier tokens at that loop, so decoding is the full-sequence forward pass."""

import pytest
import torch
from transformers import DynamicCache

from looprl.models import LoopLMConfig, LoopLMForCausalLM

PAD, LENGTH = 0, 9


def model(**overrides):
    torch.manual_seed(0)
    settings = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape = {"vocab_size": 40, "kv_policy": "per_loop", "pad_token_id": PAD, "eos_token_id": 1} | settings
    return LoopLMForCausalLM(LoopLMConfig(**(shape | overrides))).double().eval()


def tokens():
    return torch.randint(2, 40, (3, LENGTH), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def decoded(looped, ids, mask, chunks):
    """Logits and states of the chunks, one after another on one cache."""
    cache, logits, states, start = DynamicCache(), [], [], 0
    for length in chunks:
        end = start + length
        output = looped(ids[:, start:end], mask[:, :end], past_key_values=cache, use_cache=True)
        logits.append(output.logits)
        states.append(output.state)
        start = end
    return torch.cat(logits, 1), torch.cat(states, 1)


@pytest.mark.parametrize("chunks", [(9,), (5, 1, 1, 1, 1), (4, 3, 2)], ids=str)
@pytest.mark.parametrize("num_loops", [1, 2, 6])
@pytest.mark.parametrize("injection", ["orthogonal", "linear", "decay", "add"])
def test_decoding_equals_the_full_sequence_forward_pass_in_any_chunks(chunks, num_loops, injection):
    looped = model(num_loops=num_loops, injection=injection)
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    expected = looped(ids, mask)
    logits, states = decoded(looped, ids, mask, chunks)
    kept = mask.bool()
    torch.testing.assert_close(logits[kept], expected.logits[kept], rtol=0, atol=1e-10)
    torch.testing.assert_close(states[kept], expected.state[kept], rtol=0, atol=1e-10)


def test_terminal_sharing_is_another_schedule_for_more_than_one_loop():
    ids = tokens()
    mask = torch.ones_like(ids)
    terminal = model(kv_policy="terminal", num_loops=3)
    full = terminal(ids, mask).logits
    assert (decoded(terminal, ids, mask, (5, 1, 1, 1, 1))[0] - full).abs().max() > 1e-3
    once = model(kv_policy="terminal", num_loops=1)
    torch.testing.assert_close(decoded(once, ids, mask, (5, 4))[0], once(ids, mask).logits, rtol=0, atol=1e-10)


def test_generate_decodes_with_the_configured_policy():
    looped, ids = model(num_loops=3), tokens()
    generated = looped.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)
    for length in range(LENGTH, LENGTH + 6):
        assert torch.equal(looped(generated[:, :length]).logits[:, -1].argmax(-1), generated[:, length])


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="choose from terminal, per_loop"):
        LoopLMConfig(kv_policy="shared")
