"""Loading rewards by FILE.py:FUNCTION, and the errors when that names nothing usable."""

import inspect
from pathlib import Path

import pytest

from looprl.rewards import RewardError, check_columns, final_answers, load_reward, load_rewards, required_columns

ROOT = Path(__file__).parents[2]
FILE = """
import functools

def length(prompts, completions, **kwargs):
    return [len(completion) for completion in completions]

def needs(prompts, completions, completion_ids, tests, *, limit, weight=1, **kwargs):
    return [weight for _ in completions]

def narrow(prompts, completions, answer):
    return [0 for _ in completions]

async def later(prompts, completions, **kwargs):
    return [0 for _ in completions]

class Judge:
    def __call__(self, prompts, completions, **kwargs):
        return [2 for _ in completions]

CONSTANT = 3
biggest = max
judge = Judge()
bound = functools.partial(needs, limit=1)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_reward_is_found_in_the_working_directory_and_then_beside_the_package(here):
    assert load_reward("mine.py:length")(prompts=["p"], completions=["four"]) == [4.0]
    shipped = load_reward("rewards/gsm8k.py:accuracy")
    assert Path(inspect.getsourcefile(inspect.unwrap(shipped))) == ROOT / "rewards" / "gsm8k.py"
    (here / "rewards").mkdir()
    (here / "rewards" / "gsm8k.py").write_text(
        "def accuracy(completions, **kwargs):\n    return [7] * len(completions)"
    )
    assert load_reward("rewards/gsm8k.py:accuracy")(prompts=["p"], completions=["c"]) == [7.0]


def test_callable_objects_and_partials_are_rewards_too(here):
    judge, bound = load_reward("mine.py:judge"), load_reward(f"{here}/mine.py:bound")
    assert (judge.__name__, judge(prompts=["p"], completions=["c"])) == ("Judge", [2.0])
    assert bound.__name__ == "needs"
    assert bound(prompts=["p"], completions=["c"], completion_ids=[[1]], tests=["t"]) == [1.0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mine.py", "named FILE.py:FUNCTION, such as rewards/gsm8k.py:accuracy, not 'mine.py'"),
        ("mine:length", "named FILE.py:FUNCTION"),
        ("mine.py:", "named FILE.py:FUNCTION"),
        (
            "rewards/gsm8.py:accuracy",
            r"no reward file rewards/gsm8\.py; .*Did you mean 'rewards/gsm8k\.py'\?",
        ),
        ("mine.py:lenth", r"no function 'lenth'; its functions: length, .*Did you mean 'length'\?"),
        ("mine.py:CONSTANT", "CONSTANT in .*mine.py is of type int, not a function"),
        ("mine.py:narrow", r"narrow in .*mine.py does not take \*\*kwargs"),
        ("mine.py:biggest", r"biggest in .*mine.py does not take \*\*kwargs"),
        ("mine.py:later", "later in .*mine.py is an async function"),
    ],
)
def test_a_name_that_leads_to_no_reward_is_refused(here, spec, message):
    with pytest.raises(RewardError, match=message):
        load_reward(spec)


def test_a_file_that_fails_to_import_is_refused_with_the_reason(here):
    (here / "broken.py").write_text("import no_such_module\n")
    (here / "typo.py").write_text("def f(:\n")
    with pytest.raises(RewardError, match=r"broken.py cannot be imported: ModuleNotFoundError: .*no_such_module"):
        load_reward("broken.py:f")
    with pytest.raises(RewardError, match=r"typo.py cannot be imported: SyntaxError"):
        load_reward("typo.py:f")


def test_rewards_that_share_a_name_are_told_apart(here):
    names = [
        reward.__name__ for reward in load_rewards(["rewards/gsm8k.py:accuracy", "rewards/arithmetic.py:accuracy"])
    ]
    assert names == ["gsm8k.accuracy", "arithmetic.accuracy"]
    (here / "other").mkdir()
    (here / "other" / "mine.py").write_text(FILE)
    specs = ["mine.py:length", "other/mine.py:length", "rewards/gsm8k.py:accuracy"]
    assert [reward.__name__ for reward in load_rewards(specs)] == [*specs[:2], "accuracy"]
    assert [reward.__name__ for reward in load_rewards("mine.py:length")] == ["length"]


def test_no_reward_and_the_same_reward_twice_are_refused(here):
    with pytest.raises(RewardError, match="no reward is named"):
        load_rewards([])
    with pytest.raises(RewardError, match=r"mine\.py:length is named 2 times; .*reward_weights"):
        load_rewards(["mine.py:length"] * 2)


def test_a_column_that_a_reward_needs_is_missed_before_training(here):
    needs, length = load_rewards(["mine.py:needs", "mine.py:length"])
    assert required_columns(needs) == ["tests", "limit"]
    assert required_columns(length) == []
    check_columns([needs, length], ["prompt", "tests", "limit"])
    message = r"needs in .*mine\.py needs the column 'tests'.* columns are prompt, test\. Did you mean 'test'\?"
    with pytest.raises(RewardError, match=message):
        check_columns([length, needs], ["prompt", "test"])


def test_final_answers_come_from_the_rewards_own_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def score(prompts, **kwargs):\n    return [0.0] * len(prompts)\n\n\n"
        "def final_answer(completion):\n    return completion.split()[-1] if completion else None\n"
    )
    reward = load_reward(f"{file}:score")
    assert final_answers(reward, ["so 5", [{"role": "assistant", "content": "it is 7"}], ""]) == ["5", "7", None]
    assert final_answers(load_reward("rewards/arithmetic.py:accuracy"), ["1 + 1 = 2\n#### 2", "2"]) == ["2", None]


def test_a_reward_without_final_answers_has_none(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def score(prompts, **kwargs):\n    return [0.0] * len(prompts)\n")
    assert final_answers(load_reward(f"{file}:score"), ["so 5"]) is None


@pytest.mark.parametrize(("body", "said"), [("return 5", "returned 5"), ("return completion[9]", "IndexError")])
def test_broken_final_answers_are_named_with_their_file(tmp_path, body, said):
    file = tmp_path / "mine.py"
    file.write_text(
        "def score(prompts, **kwargs):\n    return [0.0] * len(prompts)\n\n\n"
        f"def final_answer(completion):\n    {body}\n"
    )
    with pytest.raises(RewardError, match=rf"final_answer in {file} .*{said}"):
        final_answers(load_reward(f"{file}:score"), ["so 5"])
