"""Activations counted without tensors are those that the allocator hands out, and Huginn has its published size."""

import pytest
import torch

from looprl.gradients import Estimator, token_log_probs
from looprl.measure.activations import WeightlessModel
from looprl.measure.timing import peak_bytes
from looprl.models import FAMILIES, LoopLMConfig, LoopLMForCausalLM
from tests.published import MODELS, random_published

BATCH, LENGTH, COMPLETION, LOOPS = 6, 96, 40, 5
ESTIMATORS = {
    "reuse": Estimator.preset("reuse", 4),
    "recompute": Estimator.preset("recompute", 0),
    "truncated": Estimator.preset("truncated", loops_recorded=3),
    "full": Estimator.preset("full"),
    "rltt": Estimator.preset("rltt", loop_weights="progressive"),
}


def a_model(name):
    if name == "looplm":
        torch.manual_seed(0)
        return LoopLMForCausalLM(LoopLMConfig(vocab_size=97))
    return random_published(name)


def allocated(model, estimator, autocast=False):
    """The allocator's peak of scoring a padded micro-batch, as training does it."""
    ids = torch.randint(3, 90, (BATCH, LENGTH))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    state = torch.randn(BATCH, LENGTH, model.config.hidden_size) if estimator.state_from == "rollout" else None

    def score():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = model(
                ids,
                mask,
                num_loops=LOOPS,
                initial_state=state,
                loop_runner=estimator,
                logits_to_keep=COMPLETION,
            )
            return token_log_probs(output, ids[:, -COMPLETION:], loop_weights=estimator.loop_weights)

    score()
    return peak_bytes(score, "cpu")


@pytest.mark.parametrize("name", ["looplm", *MODELS])
def test_activations_are_what_scoring_takes(name):
    model = a_model(name)
    outline = WeightlessModel(model.config, torch.float32)
    assert outline.parameters == sum(parameter.numel() for parameter in model.parameters())
    for estimator in ESTIMATORS.values():
        counted = outline.recorded_bytes(estimator, LOOPS, BATCH, LENGTH, COMPLETION)
        assert 0.93 <= counted / allocated(model, estimator) <= 1.001  # the token ids are here before the call


@pytest.mark.parametrize("autocast", [False, True])
def test_in_half_precision_too(autocast):
    model = a_model("huginn").to(torch.float32 if autocast else torch.bfloat16)
    outline = WeightlessModel(model.config, model.dtype)
    for name in ("reuse", "full"):
        counted = outline.recorded_bytes(ESTIMATORS[name], LOOPS, BATCH, LENGTH, COMPLETION, autocast)
        assert 0.9 <= counted / allocated(model, ESTIMATORS[name], autocast) <= 1


def test_log_probs_are_kept_in_single_precision_for_completion_tokens_only():
    small, large = (
        WeightlessModel(random_published("huginn", vocab_size=size).config, torch.bfloat16).recorded_bytes(
            ESTIMATORS["reuse"], LOOPS, BATCH, LENGTH, COMPLETION
        )
        for size in (97, 1097)
    )
    assert large - small == BATCH * COMPLETION * 1000 * 4


def test_full_bptt_records_every_loop_and_reuse_one():
    outline = WeightlessModel(a_model("olmo2").config, torch.float32)
    counts = {
        loops: [outline.recorded_bytes(ESTIMATORS[name], loops, 2, 24, 8) for name in ("reuse", "full")]
        for loops in (1, 2, 3, 9)
    }
    reuse, full = zip(*counts.values(), strict=True)
    assert len(set(reuse)) == 1
    assert full[1] - full[0] == full[2] - full[1] == (full[3] - full[2]) / 6 > 0
    assert reuse[0] == full[0]


def test_huginn_has_the_parameters_that_its_authors_state():
    """1.5 billion in the recurrent block, 1.5 outside of it beside the tied embedding; 3.5 in all."""
    config = FAMILIES["huginn_raven"].config_class(
        n_embd=5280, n_heads=55, intermediate_size=17920, vocab_size=65536, mean_recurrence=32, block_size=4096,
        n_layers_in_prelude=2, n_layers_in_recurrent_block=4, n_layers_in_coda=2, tie_embeddings=True, qk_bias=True,
    )  # fmt: skip
    outline = WeightlessModel(config, torch.bfloat16)
    width, inner = 5280, 17920
    block = 4 * width**2 + 3 * width * inner + 4 * width + 2 * width  # attention, feed-forward, norms, q and k bias
    assert outline.parameters == 8 * block + 2 * width**2 + width + 65536 * width
    assert outline.parameters == pytest.approx(3.5e9, rel=0.02)
    core = sum(parameter.numel() for parameter in outline.model.model.core.parameters())
    assert core == pytest.approx(1.6e9, rel=0.03)
    assert outline.model.lm_head.weight is outline.model.model.embed_tokens.weight
