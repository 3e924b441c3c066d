"""The arithmetic reward: what earns one and what zero; and what it shares with GSM8K's."""

from pathlib import Path

import pytest

from looprl.data.arithmetic import ArithmeticTask, problems
from looprl.rewards import load_reward

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def arithmetic():
    return load_reward(f"{ROOT}/rewards/arithmetic.py:accuracy")


@pytest.fixture(scope="module")
def gsm8k():
    return load_reward(f"{ROOT}/rewards/gsm8k.py:accuracy")


def judge(reward, completions, answers):
    answers = [answers] * len(completions) if isinstance(answers, str) else answers
    return reward(prompts=["p"] * len(completions), completions=completions, answer=answers, completion_ids=[])


def test_every_gold_answer_scores_one_and_any_other_number_zero(arithmetic):
    golds = [problem["answer"] for problem in problems(ArithmeticTask(), "test", 60, seed=0)]
    assert judge(arithmetic, golds, golds) == [1.0] * len(golds)
    for gold in golds[:20]:
        steps, _, number = gold.partition("#### ")
        for other in set(range(100)) - {int(number)}:
            assert judge(arithmetic, [f"{steps}#### {other}"], gold) == [0.0]


@pytest.mark.parametrize("completion", ["#### 11", "12 + 3 = 15\n#### 11", "####11", " #### 11 \n", "12#### 11"])
def test_arithmetic_rewards_the_exact_number_after_one_mark(arithmetic, completion):
    assert judge(arithmetic, [completion], "12 + 3 = 15\n15 - 4 = 11\n#### 11") == [1.0]


@pytest.mark.parametrize(
    "completion",
    [
        "", "11", "####", "### 11", "#### 1", "#### 111", "#### 011", "#### 11.", "#### 11.0", "#### +11",
        "#### -11",
        "#### 11 #### 11", "#### 12\n#### 11", "##### 11", "######## 11", "#### 1 1", "#### 11 apples",
        "#### 11\n12 + 3 = 15", "#### ١١", "#### 11\x00", "11 ####", "#### eleven", "#### 5 + 6",
    ],
)  # fmt: skip
def test_arithmetic_rewards_nothing_else(arithmetic, completion):
    assert judge(arithmetic, [completion], "#### 11") == [0.0]


@pytest.mark.parametrize("gold", ["", "####", "#### eighteen", "#### 1 2", "#### 18 dollars", None])
def test_an_unreadable_gold_cannot_be_judged(arithmetic, gsm8k, gold):
    for reward in (arithmetic, gsm8k):
        assert judge(reward, ["#### 18", "#### 18"], [gold, "#### 18"]) == [None, 1.0]


def test_conversational_completions_are_judged_by_their_last_message(arithmetic, gsm8k):
    right = [{"role": "tool", "content": "#### 5"}, {"role": "assistant", "content": "#### 11"}]
    wrong = [{"role": "assistant", "content": "#### 11"}, {"role": "assistant", "content": "#### 5"}]
    for reward in (arithmetic, gsm8k):
        assert judge(reward, [right, wrong, []], "#### 11") == [1.0, 0.0, 0.0]
