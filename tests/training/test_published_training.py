"""RL with reuse reaches every tensor of a published model, save those that the family names."""

import pytest
import torch

from looprl.data.tokenizer import build_tokenizer
from tests.published import MODELS, random_published
from tests.training.conftest import make_trainer


@pytest.mark.parametrize("name", MODELS)
def test_three_steps_with_reuse_move_every_trained_tensor(name, tmp_path):
    tokenizer = build_tokenizer()
    vocabulary = {"vocab_size": len(tokenizer)} | ({"padded_vocab_size": 512} if name == "parcae" else {})
    model = random_published(name, num_loops=3, **vocabulary, **special_tokens(tokenizer))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    seen = []

    def lengths(completion_ids, **kwargs):
        return [float(sum(ids) % 7) for ids in completion_ids]

    class Kept(torch.optim.AdamW):
        def step(self, *args, **kwargs):
            seen.append({key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None})
            return super().step(*args, **kwargs)

    trainer = make_trainer(
        tmp_path, lengths, tokenizer, model, max_steps=3, estimator="reuse", report_to=[], save_strategy="no"
    )
    trainer.optimizer = Kept(model.parameters(), lr=1e-3)
    try:
        trainer.train()
    finally:
        trainer.engine.close()
    assert len(seen) == 3
    left_out = model.left_as_they_are(loops_recorded=1)
    assert bool(left_out) == (name == "ouro")
    for step in seen:
        assert {key for key, _ in model.named_parameters() if key not in left_out} == step.keys()
        for key, gradient in step.items():
            assert gradient.isfinite().all() and gradient.any(), key
    after = model.state_dict()
    moved = {key for key in after if not torch.equal(before[key], after[key])}
    assert moved >= step.keys()
    logged = [row for row in trainer.state.log_history if "replay/logprob_gap_max" in row]
    assert max(row["replay/logprob_gap_max"] for row in logged) < 1e-4


def special_tokens(tokenizer):
    return {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
