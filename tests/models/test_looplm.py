"""LoopLM: what a token may see, cached decoding, the shapes it is built in, and what it refuses."""

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

import looprl
from looprl.models import LoopLMConfig, LoopLMForCausalLM
from looprl.models.layers import rotary_factors, rotate
from looprl.models.loop import LoopContext

ROWS = [[3, 14, 1, 5, 9, 2, 6], [5, 3, 5], [8, 9, 7, 9, 3], [11]]
NEAR = dict(rtol=0, atol=1e-10)


def padded_batch(rows, side, width=None, fill=16):
    """input_ids and attention_mask [B, width]; padding holds a real token's id, so that it shows if it is read."""
    width = width or max(map(len, rows))
    ids = torch.full((len(rows), width), fill)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[i, place], mask[i, place] = torch.tensor(row), 1
    return ids, mask


def lively(tensor):
    """Not vacuous: the values compared differ from each other."""
    return tensor.std() > 0.05


SHAPES = {
    "orthogonal": dict(injection="orthogonal"),
    "linear": dict(injection="linear"),
    "grouped": dict(num_attention_heads=4, num_key_value_heads=2, head_dim=4),
    "pre-rms-untied": dict(norm_placement="pre", norm="rms", tie_word_embeddings=False),
    "no-prelude-no-coda": dict(num_prelude_layers=0, num_coda_layers=0),
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def shape(request):
    return request.param


# What a token may see


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("width", [7, 10])
def test_a_padded_row_equals_the_same_row_alone(make_model, shape, side, width):
    model = make_model(**shape)
    ids, mask = padded_batch(ROWS, side, width)
    batched = model(ids, mask)
    assert batched.logits.isfinite().all() and batched.state.isfinite().all()
    for row, logits, state, real in zip(ROWS, batched.logits, batched.state, mask.bool(), strict=True):
        alone = model(torch.tensor([row]))
        torch.testing.assert_close(logits[real], alone.logits[0], **NEAR)
        torch.testing.assert_close(state[real], alone.state[0], **NEAR)
        assert lively(alone.logits)


@pytest.mark.parametrize("side", ["left", "right"])
def test_every_query_may_read_something_since_softmax_over_nothing_is_undefined(make_model, side):
    mask = make_model().model.context(*padded_batch(ROWS, side, 10)).mask
    assert mask.any(-1).all()


@pytest.mark.parametrize("side", ["left", "right"])
def test_gradients_through_padding_equal_those_of_the_rows_alone(make_model, side):
    model = make_model()
    ids, mask = padded_batch(ROWS, side)
    parameters = list(model.parameters())
    batched = torch.autograd.grad((model(ids, mask).logits.square().mean(-1) * mask).sum(), parameters)
    alone = sum(model(torch.tensor([row])).logits.square().mean(-1).sum() for row in ROWS)
    torch.testing.assert_close(batched, torch.autograd.grad(alone, parameters), rtol=1e-9, atol=1e-10)


def test_plain_forward_equals_one_chunk_of_the_independent_reference(make_model, schedule, shape):
    model = make_model(**shape)
    output = model(torch.tensor(ROWS[:1]))
    logits, states = schedule(model, 3).feed_all(ROWS[:1])
    torch.testing.assert_close(output.logits[0], logits, **NEAR)
    torch.testing.assert_close(output.state[0], states, **NEAR)


def test_a_changed_token_changes_nothing_before_it(make_model, shape):
    model = make_model(**shape)
    ids = torch.tensor(ROWS[:1])
    before = model(ids)
    for place in range(1, ids.shape[1]):
        changed = ids.clone()
        changed[0, place] = 12
        after = model(changed)
        torch.testing.assert_close(after.logits[:, :place], before.logits[:, :place], **NEAR)
        torch.testing.assert_close(after.state[:, :place], before.state[:, :place], **NEAR)
        assert ((after.logits - before.logits)[:, place:].abs().amax(-1) > 1e-4).all()


def test_attention_depends_on_relative_positions_only():
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)

    def logit(query_position, key_position):
        turned = [
            rotate(x, *rotary_factors(torch.tensor([[position]]), 8, 10000.0, torch.float64))
            for x, position in ((query, query_position), (key, key_position))
        ]
        return (turned[0] * turned[1]).sum().item()

    for distance in (0, 1, 5):
        assert logit(40 + distance, 40) == pytest.approx(logit(distance, 0), abs=1e-4)
        assert logit(3 + distance, 3) == pytest.approx(logit(distance, 0), abs=1e-5)
    assert len({round(logit(distance, 0), 3) for distance in (-2, -1, 0, 1, 2)}) == 5
    assert logit(0, 0) == pytest.approx((query * key).sum().item())


def test_shifting_every_position_alike_changes_nothing(make_model):
    model = make_model().model
    ids = torch.tensor(ROWS[:1])

    def states(positions):
        context = LoopContext(*rotary_factors(positions[None], 4, 10000.0, torch.float64), mask=None)
        injected = model.prelude(ids, context=context)
        return model.core(model.core(torch.zeros_like(injected), injected, *context), injected, *context)

    plain = states(torch.arange(7))
    torch.testing.assert_close(states(torch.arange(7) + 9), plain, rtol=0, atol=1e-5)
    assert (states(torch.arange(7) * 2) - plain).abs().max() > 1e-2


# Cached decoding with terminal KV sharing


def decode(model, ids, mask, chunks, num_loops):
    """Feed `ids` in chunks of the given widths through the cache; logits and states of all positions."""
    cache, start, logits, states = DynamicCache(), 0, [], []
    for width in chunks:
        seen = None if mask is None else mask[:, : start + width]
        piece = ids[:, start : start + width]
        output = model(piece, seen, num_loops=num_loops, past_key_values=cache, use_cache=True)
        assert output.past_key_values is cache
        logits.append(output.logits)
        states.append(output.state)
        start += width
    return torch.cat(logits, 1), torch.cat(states, 1)


@pytest.mark.parametrize("num_loops", [1, 2, 6])
def test_cached_decoding_equals_its_schedule_without_a_cache(make_model, schedule, shape, num_loops):
    model = make_model(**shape)
    row, new = ROWS[0], [4, 12, 0, 4]
    chunks = [row, *([token] for token in new)]
    logits, states = decode(model, torch.tensor([row + new]), None, map(len, chunks), num_loops)
    expected_logits, expected_states = schedule(model, num_loops).feed_all(chunks)
    torch.testing.assert_close(logits[0], expected_logits, **NEAR)
    torch.testing.assert_close(states[0], expected_states, **NEAR)


@pytest.mark.parametrize("num_loops", [1, 2, 6])
def test_cached_decoding_behind_left_padding_equals_its_schedule(make_model, schedule, shape, num_loops):
    model = make_model(**shape)
    prompts, prompt_mask = padded_batch(ROWS, "left")
    new = torch.tensor([[4, 12, 0], [1, 1, 2], [10, 4, 6], [15, 7, 7]])
    ids, mask = torch.cat([prompts, new], 1), torch.cat([prompt_mask, torch.ones_like(new)], 1)
    logits, states = decode(model, ids, mask, [prompts.shape[1], 1, 1, 1], num_loops)
    for i, row in enumerate(ROWS):
        chunks = [row, *([token] for token in new[i].tolist())]
        expected_logits, expected_states = schedule(model, num_loops).feed_all(chunks)
        torch.testing.assert_close(logits[i, mask[i].bool()], expected_logits, **NEAR)
        torch.testing.assert_close(states[i, mask[i].bool()], expected_states, **NEAR)


@pytest.mark.parametrize("num_loops", [1, 2, 6])
def test_a_prompt_in_two_chunks_is_another_schedule_unless_there_is_one_loop(make_model, schedule, num_loops):
    model = make_model()
    ids = torch.tensor(ROWS[:1])
    whole, _ = decode(model, ids, None, [7], num_loops)
    split, _ = decode(model, ids, None, [4, 3], num_loops)
    expected, _ = schedule(model, num_loops).feed_all([ROWS[0][:4], ROWS[0][4:]])
    torch.testing.assert_close(split[0], expected, **NEAR)
    torch.testing.assert_close(split[:, :4], whole[:, :4], **NEAR)
    if num_loops == 1:
        torch.testing.assert_close(split, whole, **NEAR)
    else:
        assert (split - whole)[:, 4:].abs().max() > 1e-3


def test_the_cache_holds_one_bank_per_physical_layer_whatever_the_loops(make_model):
    model = make_model(num_attention_heads=4, num_key_value_heads=2, head_dim=4)
    cache = model(torch.tensor(ROWS[:1]), num_loops=6, use_cache=True).past_key_values
    assert len(cache.layers) == 4
    assert all(layer.keys.shape == layer.values.shape == (1, 2, 7, 4) for layer in cache.layers)


@pytest.mark.parametrize("num_loops", [1, 2, 6])
@pytest.mark.parametrize("name", ["orthogonal", "linear", "grouped"])
def test_greedy_generation_follows_the_schedule(make_model, schedule, name, num_loops):
    model = make_model(num_loops=num_loops, tie_word_embeddings=False, **SHAPES[name])
    ids, mask = padded_batch(ROWS, "left")
    generated = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=16)
    assert generated.shape == (4, 13)
    for row, tokens in zip(ROWS, generated[:, 7:].tolist(), strict=True):
        reference, chunk, expected = schedule(model, num_loops), row, []
        for _ in range(6):
            logits, _ = reference.feed(chunk)
            chunk = [int(logits[-1].argmax())]
            expected += chunk
        assert tokens == expected
    assert len(set(generated[:, 7:].flatten().tolist())) > 4


def test_logits_to_keep_are_the_last_ones(make_model):
    model = make_model()
    ids = torch.tensor(ROWS[:1])
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, model(ids).logits[:, -2:], **NEAR)
    assert model(ids, logits_to_keep=0).logits.shape == (1, 7, 17)


# Loops


def test_the_num_loops_argument_overrides_the_configuration(make_model):
    model = make_model(num_loops=3)
    ids = torch.tensor(ROWS[:1])
    by_argument = model(ids, num_loops=5).logits
    assert torch.equal(model(ids).logits, model(ids, num_loops=3).logits)
    assert (model(ids).logits - by_argument).abs().max() > 1e-3
    model.config.num_loops = 5
    assert torch.equal(model(ids).logits, by_argument)


@pytest.mark.parametrize("side", ["left", "right"])
def test_loops_continued_from_a_returned_state_equal_all_loops_at_once(make_model, shape, side):
    model = make_model(**shape)
    ids, mask = padded_batch(ROWS, side)
    first = model(ids, mask, num_loops=2)
    rest = model(ids, mask, num_loops=3, initial_state=first.state)
    whole = model(ids, mask, num_loops=5)
    assert torch.equal(rest.logits, whole.logits) and torch.equal(rest.state, whole.state)
    assert (whole.state - first.state).abs().max() > 1e-3


def test_the_state_is_the_core_applied_num_loops_times_to_zero(make_model):
    model = make_model()
    ids = torch.tensor(ROWS[:1])
    context = model.model.context(ids, None)
    injected = model.model.prelude(ids)
    state = model.model.initial_state(injected)
    assert state.shape == (1, 7, 8) and not state.any()
    for num_loops in (1, 2, 3):
        state = model.model.core(state, injected, *context)
        assert torch.equal(model(ids, num_loops=num_loops).state, state)
    assert torch.equal(model(ids).logits, model.lm_head(model.model.coda(state, context)))


@pytest.mark.parametrize("wrong", [(1, 6, 8), (1, 7, 9), (2, 7, 8), (7, 8)])
def test_an_initial_state_of_another_shape_is_refused(make_model, wrong):
    with pytest.raises(ValueError, match=r"initial_state has shape .*needs \(1, 7, 8\)"):
        make_model()(torch.tensor(ROWS[:1]), initial_state=torch.zeros(wrong))


@pytest.mark.parametrize("num_loops", [0, -1])
def test_fewer_than_one_loop_is_refused(make_model, num_loops):
    with pytest.raises(ValueError, match=f"num_loops must be at least 1, got {num_loops}"):
        make_model()(torch.tensor(ROWS[:1]), num_loops=num_loops)


# Shapes, heads, files


def test_grouped_heads_equal_full_attention_with_the_key_and_value_weights_repeated(make_model):
    grouped = make_model(num_attention_heads=4, num_key_value_heads=2, head_dim=4)
    full = make_model(seed=1, num_attention_heads=4, num_key_value_heads=4, head_dim=4)
    weights = grouped.state_dict()
    for name in weights:
        if name.endswith("qkv_proj.weight"):
            queries, keys, values = weights[name].split([16, 8, 8])
            repeated = [w.unflatten(0, (2, 4)).repeat_interleave(2, 0).flatten(0, 1) for w in (keys, values)]
            weights[name] = torch.cat([queries, *repeated])
    full.load_state_dict(weights)
    ids, mask = padded_batch(ROWS, "left")
    real = mask.bool()
    torch.testing.assert_close(grouped(ids, mask).logits[real], full(ids, mask).logits[real], **NEAR)


def test_a_tied_head_is_the_embedding_and_an_untied_one_is_not(make_model):
    tied, untied = make_model(), make_model(tie_word_embeddings=False)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert untied.lm_head.weight.data_ptr() != untied.model.embed_tokens.weight.data_ptr()
    assert untied.num_parameters() - tied.num_parameters() == 17 * 8
    # tied, the embedding is drawn small for the head and scaled up for the input
    assert tied.config.embedding_scale == 8**0.5 and untied.config.embedding_scale == 1


@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_model_comes_back_bit_for_bit(make_model, tmp_path, tied):
    model = make_model(tie_word_embeddings=tied, injection="linear", norm="rms", num_loops=4).float()
    model.save_pretrained(tmp_path)
    ids, mask = padded_batch(ROWS, "left")
    for load in (looprl.load_model, AutoModelForCausalLM.from_pretrained):
        again = load(str(tmp_path))
        assert type(again) is LoopLMForCausalLM and again.dtype == torch.float32
        before, after = model.state_dict(), again.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert torch.equal(model(ids, mask).logits, again(ids, mask).logits)
        assert again.config.num_loops == 4 and again.config.to_diff_dict() == model.config.to_diff_dict()
        assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied


WRONG_CONFIGS = {
    "norm": (dict(norm="batch"), "norm is 'batch'; choose from layer, rms"),
    "norm_placement": (dict(norm_placement="post"), "norm_placement is 'post'; choose from pre, sandwich"),
    "injection": (dict(injection="additive"), "injection is 'additive'; choose from orthogonal, linear"),
    "prelude": (dict(num_prelude_layers=-1), "num_prelude_layers must be at least 0, got -1"),
    "core": (dict(num_core_layers=0), "num_core_layers must be at least 1, got 0"),
    "coda": (dict(num_coda_layers=-1), "num_coda_layers must be at least 0, got -1"),
    "loops in words": (dict(num_loops="six"), "num_loops must be a whole number, got 'six'"),
    "loops": (dict(num_loops=0), "num_loops must be at least 1, got 0"),
    "vocabulary": (dict(vocab_size=0), "vocab_size must be at least 1, got 0"),
    "width": (dict(hidden_size=0), "hidden_size must be at least 1, got 0"),
    "heads": (dict(num_attention_heads=0), "num_attention_heads must be at least 1, got 0"),
    "kv heads": (dict(num_key_value_heads=0), "num_key_value_heads must be at least 1, got 0"),
    "narrow heads": (dict(hidden_size=1), "head_dim must be at least 1, got 0"),
    "groups": (dict(num_attention_heads=4, num_key_value_heads=3), r"num_key_value_heads \(3\) must divide .*\(4\)"),
    "odd heads": (dict(head_dim=5), "head_dim must be even for rotary positions, got 5"),
    "diagonal at 0": (dict(injection_init=0.0), r"injection_init must lie in \(0, 1\), got 0.0"),
    "diagonal at 1": (dict(injection_init=1.0), r"injection_init must lie in \(0, 1\), got 1.0"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG_CONFIGS.values(), ids=WRONG_CONFIGS)
def test_an_impossible_configuration_is_refused_by_name(wrong, message):
    with pytest.raises(ValueError, match=f"LoopLMConfig.{message}"):
        LoopLMConfig(**wrong)


# Checkpointing


def test_prelude_and_coda_are_recomputed_in_backward_and_the_core_is_not(make_model):
    model = make_model().train()
    ids = torch.tensor([ROWS[0]])
    calls = []
    for name, module in model.named_modules():
        if name.rsplit(".", 1)[0] in ("model.prelude_layers", "model.core.layers", "model.coda_layers"):
            module.register_forward_pre_hook(lambda *_, name=name: calls.append(name))

    def gradients():
        calls.clear()
        model.zero_grad()
        model(ids, num_loops=2).logits.logsumexp(-1).sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    plain, once = gradients(), list(calls)
    model.gradient_checkpointing_enable()
    checkpointed = gradients()
    assert all(torch.allclose(checkpointed[name], plain[name], **NEAR) for name in plain)
    for name in set(once):
        assert calls.count(name) == once.count(name) * (1 if name.startswith("model.core") else 2), name
    model.eval()
    gradients()
    assert calls == once
