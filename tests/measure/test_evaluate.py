"""pass@1 counts rewards of exactly 1 among the completions that could be judged."""

import pytest
from datasets import Dataset

from looprl.measure.evaluate import evaluate
from tests.training.conftest import make_trainer


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    made = make_trainer(tmp_path_factory.mktemp("run"), lambda prompts, **kwargs: [0.0] * len(prompts))
    made.vllm_generation.sync_weights()
    yield made
    made.engine.close()


ROWS = Dataset.from_dict({"prompt": [f"Tom has {n}.\n" for n in range(6)], "gold": list(range(6))})


def judged(trainer, reward, seed=0):
    return evaluate(trainer.engine, trainer.processing_class, ROWS, reward, trainer.sampling(), seed)


def test_partial_rewards_do_not_pass_and_unjudged_completions_do_not_count(trainer):
    given = [1.0, 0.99, None, 0.0, 1.0, None]
    result = judged(trainer, lambda **kwargs: given)
    assert (result.pass_at_1, result.n) == (0.5, 4)
    assert [row["reward"] for row in result.rows] == given
    assert [row["gold"] for row in result.rows] == list(range(6))


def test_the_reward_gets_the_dataset_s_columns_in_order(trainer):
    seen = {}

    def reward(prompts, completions, gold, **kwargs):
        seen.update(prompts=prompts, gold=gold)
        return [0.0] * len(prompts)

    judged(trainer, reward)
    assert seen == {"prompts": ROWS["prompt"][:], "gold": list(range(6))}


def test_the_same_seed_gives_the_same_completions_whatever_was_sampled_before(trainer):
    def reward(prompts, **kwargs):
        return [0.0] * len(prompts)

    first, other, again = (judged(trainer, reward, seed).rows for seed in (0, 1, 0))
    assert first == again
    assert first != other
