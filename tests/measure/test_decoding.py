"""Teacher-forced decoding under both K/V policies against forward passes that know of no cache."""

import pytest
import torch
from transformers import DynamicCache

from looprl.measure.decoding import decode

EXACT = dict(rtol=0, atol=1e-10)


def logps_of(logits, ids, prompt):
    return logits.log_softmax(-1)[prompt - 1 : -1].gather(-1, ids[0, prompt:, None]).squeeze(-1)


@pytest.mark.parametrize("model_policy", ["terminal", "per_loop"])
def test_per_loop_decoding_is_the_full_sequence_forward_pass(tiny_model, token_batch, token_rows, model_policy):
    model = tiny_model(kv_policy=model_policy)
    decoded = decode(model, token_batch, 3, "per_loop")
    for row, (ids, columns, prompt) in enumerate(token_rows):
        with torch.no_grad():
            logits = model(ids).logits[0]
            states = {
                name: model(ids[:, :-1], num_loops=r).state[0] for name, r in (("penultimate", 2), ("endpoint", 3))
            }
        kept = slice(0, ids.shape[1] - prompt)
        torch.testing.assert_close(decoded.logps[row, kept], logps_of(logits, ids, prompt), **EXACT)
        fed = slice(columns.start, columns.stop - 1)
        for name, state in states.items():
            torch.testing.assert_close(decoded.states[name][row, fed], state, **EXACT)
    assert decoded.states["endpoint"].shape == (3, token_batch.input_ids.shape[1] - 1, 8)
    assert (decoded.logps[~token_batch.follows] == 0).all()


@pytest.mark.parametrize("model_policy", ["terminal", "per_loop"])
def test_terminal_decoding_is_the_terminal_model_s_own(tiny_model, token_batch, token_rows, model_policy):
    model, terminal = tiny_model(kv_policy=model_policy), tiny_model(kv_policy="terminal")
    decoded = decode(model, token_batch, 3, "terminal")
    per_loop = decode(model, token_batch, 3, "per_loop")
    assert (decoded.logps - per_loop.logps).abs().max() > 1e-4
    for row, (ids, _, prompt) in enumerate(token_rows):
        cache, logits = DynamicCache(), []
        with torch.no_grad():
            for start, end in [(0, prompt), *((t, t + 1) for t in range(prompt, ids.shape[1]))]:
                chunk = terminal(ids[:, start:end], torch.ones(1, end), past_key_values=cache, use_cache=True)
                logits.append(chunk.logits[0])
        expected = logps_of(torch.cat(logits), ids, prompt)
        torch.testing.assert_close(decoded.logps[row, : len(expected)], expected, **EXACT)


def test_replaying_the_penultimate_states_gives_the_decoded_log_probs_and_endpoints(tiny_model, token_batch):
    model = tiny_model(kv_policy="terminal", initializer_scale=1.5)
    decoded = decode(model, token_batch, 3, "terminal")
    ids, mask, prompt = token_batch.input_ids, token_batch.attention_mask, token_batch.prompt_length
    with torch.no_grad():
        output = model(ids[:, :-1], mask[:, :-1], num_loops=1, initial_state=decoded.states["penultimate"])
    logps = output.logits[:, prompt - 1 :].log_softmax(-1).gather(-1, ids[:, prompt:, None]).squeeze(-1)
    follows, real = token_batch.follows, mask[:, :-1].bool()
    torch.testing.assert_close(logps[follows], decoded.logps[follows], **EXACT)
    torch.testing.assert_close(output.state[real], decoded.states["endpoint"][real], **EXACT)
