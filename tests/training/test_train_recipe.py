"""What a recipe is measured on: held-out prompts of its task, and a second task that it never trains on."""

import json

import pytest

from looprl.errors import UserError
from looprl.training.train_recipe import TrainRecipe, load_task

SETTINGS = dict(model="recipes/quickstart/model", reward=["rewards/arithmetic.py:accuracy"], dataset_size=64)


def recipe(**settings):
    return TrainRecipe(**(SETTINGS | settings))


def test_without_a_second_task_only_the_held_out_prompts_are_measured():
    task = load_task(recipe(eval_size=16), seed=0)
    assert list(task.eval_sets) == ["eval"] and task.transfer is None
    assert len(task.held_out.prompts) == 16 and task.held_out.max_completion_length is None


def test_the_second_task_has_its_own_options_size_length_and_reward(tmp_path):
    (tmp_path / "other.py").write_text("def other(prompts, **kwargs):\n    return [0.25] * len(prompts)\n")
    task = load_task(
        recipe(
            transfer_dataset="arithmetic",
            transfer_task_options={"num_steps": 3},
            transfer_size=24,
            transfer_max_completion_length=21,
            transfer_reward=f"{tmp_path / 'other.py'}:other",
        ),
        seed=0,
    )
    assert list(task.eval_sets) == ["eval", "transfer"]
    prompts = task.transfer.prompts["prompt"][:]
    assert len(prompts) == 24 and task.transfer.max_completion_length == 21
    # "has", three changes and the question
    assert all(prompt.count(".") == 4 for prompt in prompts)
    assert all(prompt.count(".") == 3 for prompt in task.held_out.prompts["prompt"])
    assert task.transfer.reward(prompts=["?"], completions=["4"]) == [0.25]


def test_the_second_task_is_the_same_whatever_the_seed():
    tasks = [load_task(recipe(transfer_dataset="arithmetic", transfer_size=8), seed) for seed in (0, 1)]
    first, second = (task.transfer.prompts["prompt"][:] for task in tasks)
    assert first == second
    assert tasks[0].train_set["prompt"][:] != tasks[1].train_set["prompt"][:]


def test_prompts_of_the_second_task_that_are_trained_on_are_refused(tmp_path):
    question = load_task(recipe(), seed=0).train_set["question"][5]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": question, "answer": "#### 1"}) + "\n")
    with pytest.raises(UserError, match=r"1 of 1 transfer prompts are also trained on.*training row 5"):
        load_task(recipe(transfer_dataset=str(tmp_path / "rows.jsonl")), seed=0)


def test_columns_that_the_reward_asks_for_must_be_in_the_second_task(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1 + 1?", "gold": "2"}) + "\n")
    with pytest.raises(UserError, match="'answer'"):
        load_task(recipe(transfer_dataset=str(tmp_path / "rows.jsonl")), seed=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"transfer_size": 8},
        {"transfer_task_options": {"num_steps": 3}},
        {"transfer_reward": "rewards/gsm8k.py:accuracy"},
        {"transfer_max_completion_length": 8},
    ],
)
def test_details_without_a_second_task_are_refused(settings):
    with pytest.raises(UserError, match=f"{next(iter(settings))} given, but no transfer_dataset"):
        recipe(**settings)


def test_completion_length_of_the_second_task_must_be_positive():
    with pytest.raises(UserError, match="transfer_max_completion_length must be a positive number"):
        recipe(transfer_dataset="arithmetic", transfer_max_completion_length=0)
