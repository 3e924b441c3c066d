"""Pretraining: the depth prior, the weights of prompt and answer, padding, truncated BPTT."""

import pytest
import torch
from datasets import Dataset

from looprl.commands.pretrain import _model_config
from looprl.data.tokenizer import build_tokenizer
from looprl.errors import UserError
from looprl.training.depth_prior import DepthPrior
from looprl.training.pretrain import LoopedPretrainConfig, LoopedPretrainer, pad_rows, weighted_tokens
from tests.training.conftest import make_model


def draws(prior, count=4000):
    generator = torch.Generator().manual_seed(0)
    return torch.tensor([prior.draw(generator) for _ in range(count)], dtype=torch.float64)


def test_fixed_prior_always_gives_its_depth():
    assert set(draws(DepthPrior("fixed", 6), 50).tolist()) == {6}


def test_poisson_lognormal_prior_has_its_mean_and_variance_and_stays_in_range():
    depths = draws(DepthPrior("poisson_lognormal", 6, sigma=0.5, maximum=200), 20000)
    rate_variance = 25 * (torch.e**0.25 - 1)  # of a lognormal rate with mean 5 and sigma .5
    assert float(depths.mean()) == pytest.approx(6, abs=0.1)
    assert float(depths.var()) == pytest.approx(5 + rate_variance, rel=0.07)
    assert depths.min() == 1
    assert draws(DepthPrior("poisson_lognormal", 6, sigma=0.5, maximum=8)).max() == 8


@pytest.mark.parametrize(
    "settings",
    [("fixed", 2.5), ("uniform", 6), ("poisson_lognormal", 0.5), ("poisson_lognormal", 6, -1), ("fixed", 6, 0.5, 4)],
)
def test_an_impossible_prior_is_refused(settings):
    with pytest.raises(ValueError, match="depth"):
        DepthPrior(*settings)


def test_prompt_tokens_weigh_less_and_the_answer_ends_with_eos():
    tokenizer = build_tokenizer()
    rows = Dataset.from_dict({"prompt": ["Tom has 12 apples.\n"], "answer": ["#### 12"]})
    row = weighted_tokens(rows, tokenizer, prompt_weight=0.1, max_length=64)[0]
    prompt = tokenizer("Tom has 12 apples.\n")["input_ids"]
    assert row["input_ids"][: len(prompt)] == prompt
    assert tokenizer.decode(row["input_ids"][len(prompt) :]) == "#### 12<eos>"
    assert row["weights"] == [0.1] * len(prompt) + [1.0] * 3


def test_a_row_beyond_the_window_and_a_missing_answer_are_errors():
    tokenizer = build_tokenizer()
    rows = Dataset.from_dict({"prompt": ["Tom has 12 apples.\n"], "answer": ["#### 12"]})
    with pytest.raises(ValueError, match="window is 5"):
        weighted_tokens(rows, tokenizer, 0.1, max_length=5)
    with pytest.raises(ValueError, match="the dataset has prompt"):
        weighted_tokens(rows.remove_columns("answer"), tokenizer, 0.1, max_length=64)


@pytest.fixture
def trainer(tmp_path):
    tokenizer = build_tokenizer()
    args = LoopedPretrainConfig(
        output_dir=str(tmp_path), depth_prior="fixed", depth_mean=3, loops_recorded=2, max_steps=1
    )
    rows = Dataset.from_dict({"prompt": ["Tom has 12 apples.\n", "Ann.\n"], "answer": ["#### 12", "1"]})
    data = weighted_tokens(rows, tokenizer, 0.1, 64)
    return LoopedPretrainer(make_model(tokenizer).double(), args, data, tokenizer.pad_token_id)


def test_loss_is_the_weighted_cross_entropy_of_next_tokens_and_padding_counts_nothing(trainer):
    rows = [trainer.train_dataset[0], trainer.train_dataset[1]]
    loss = trainer.compute_loss(trainer.model, pad_rows(rows, 0))
    total = weight = 0.0
    for row in rows:
        ids = torch.tensor([row["input_ids"]])
        logps = trainer.model(ids, num_loops=3).logits.log_softmax(-1)
        for t in range(1, ids.shape[1]):
            total -= row["weights"][t] * float(logps[0, t - 1, ids[0, t]])
            weight += row["weights"][t]
    assert float(loss) == pytest.approx(total / weight, rel=1e-6)


def test_only_the_last_b_loops_are_backpropagated(trainer):
    inputs = pad_rows([trainer.train_dataset[0]], 0)
    trainer.compute_loss(trainer.model, inputs).backward()
    got = trainer.model.model.core.injection.diagonal_logit.grad.clone()
    trainer.model.zero_grad()
    ids, weights = inputs["input_ids"], inputs["weights"][0, 1:]
    with torch.no_grad():
        state = trainer.model(ids[:, :-1], num_loops=1).state
    logps = trainer.model(ids[:, :-1], num_loops=2, initial_state=state).logits.log_softmax(-1)
    nll = -logps[0].gather(-1, ids[0, 1:, None]).squeeze(-1)
    ((nll * weights).sum() / weights.sum()).backward()
    torch.testing.assert_close(got, trainer.model.model.core.injection.diagonal_logit.grad, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"num_core_layer": 7}, "num_core_layers"), ({"norm": "batch"}, "choose from layer, rms")],
)
def test_a_model_config_that_means_nothing_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        _model_config({"vocab_size": 9, **settings})
