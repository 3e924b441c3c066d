"""The shipped rewards: what earns one, what earns zero, what cannot be judged."""

import json
from pathlib import Path

import pytest

from looprl.data.arithmetic import ArithmeticTask, problems
from looprl.rewards import load_reward

ROOT = Path(__file__).parents[2]
GSM8K = ROOT / "tests" / "data" / "gsm8k_train_48.jsonl"


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


def test_all_real_gsm8k_solutions_score_one_and_those_of_other_problems_by_their_number(gsm8k):
    golds = [json.loads(line)["answer"] for line in GSM8K.read_text().splitlines()]
    assert judge(gsm8k, golds, golds) == [1.0] * 48
    shifted = golds[1:] + golds[:1]
    same = [float(a.split("####")[1] == b.split("####")[1]) for a, b in zip(shifted, golds, strict=True)]
    assert sum(same) < 10 and judge(gsm8k, shifted, golds) == same


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        ("The answer is 18.", "#### 18"), ("18 dollars", "#### 18"), ("first 3, then 18", "#### 18"),
        ("$1,080.00", "#### 1,080"), ("1080", "#### 1,080"), ("1,234,567", "#### 1234567"),
        ("**18**", "#### 18"), ("0018", "#### 18"), ("18e", "#### 18"),
        ("0.50", "#### .5"), ("half is .5", "#### 0.5"), ("answer:.5", "#### .5"), ("-5", "#### -5"),
        ("-$5", "#### -5"), ("$-5", "#### -5"), ("= -5", "#### -5"), ("10-4", "#### 4"), ("7 - 4", "#### 4"),
        ("(3)-4", "#### 4"), ("1,2,3", "#### 3"), ("18", "18"), ("18.0", "#### 18"), ("no.5", "#### 5"),
        ("ends. 18.", "step 3 #### 18"), ("9" * 5000, "#### " + "9" * 5000),
    ],
)  # fmt: skip
def test_gsm8k_compares_the_last_number_by_value(gsm8k, completion, gold):
    assert judge(gsm8k, [completion], gold) == [1.0]


@pytest.mark.parametrize("completion", ["", "no number", "18 or 19", "-18", "1.8", "1,8", "180", "18 19", "١٨"])
def test_gsm8k_gives_zero_to_another_last_number(gsm8k, completion):
    assert judge(gsm8k, [completion], "#### 18") == [0.0]


@pytest.mark.parametrize("gold", ["", "####", "#### eighteen", "#### 1 2", "#### 18 dollars", None])
def test_an_unreadable_gold_cannot_be_judged(arithmetic, gsm8k, gold):
    for reward in (arithmetic, gsm8k):
        assert judge(reward, ["#### 18", "#### 18"], [gold, "#### 18"]) == [None, 1.0]


def test_conversational_completions_are_judged_by_their_last_message(arithmetic, gsm8k):
    right = [{"role": "tool", "content": "#### 5"}, {"role": "assistant", "content": "#### 11"}]
    wrong = [{"role": "assistant", "content": "#### 11"}, {"role": "assistant", "content": "#### 5"}]
    for reward in (arithmetic, gsm8k):
        assert judge(reward, [right, wrong, []], "#### 11") == [1.0, 0.0, 0.0]
