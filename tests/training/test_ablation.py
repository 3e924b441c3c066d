"""What an ablation compares: arms are resolved and checked before anything is trained."""

import pytest

from looprl.errors import UserError
from looprl.recipe import parse_recipe
from looprl.recipe_file import shipped_recipes
from looprl.training.ablation import DEFAULT_ARMS, AblationRecipe, resolve_arms

QUICKSTART = "recipes/quickstart.yaml"


def ablation(**settings):
    return AblationRecipe(**{"recipe": QUICKSTART, "overrides": {"eval_size": 16, "dataset_size": 64}} | settings)


def test_by_default_five_estimators_on_three_seeds_are_compared_with_full_bptt():
    recipe = ablation()
    arms = resolve_arms(recipe)
    keys = ("estimator", "replay_from", "neumann_steps")
    assert [tuple(arm.own.get(key) for key in keys) for arm in arms] == [
        ("full", None, None),
        ("recompute", "penultimate", 4),
        ("reuse", "endpoint", 4),
        ("reuse", "penultimate", 4),
        ("reuse", "penultimate", 0),
    ]
    assert recipe.seeds == [0, 1, 2] and recipe.baseline == "full"


def test_the_shipped_recipe_names_the_default_arms():
    (recipe,) = parse_recipe((AblationRecipe,), [str(shipped_recipes()["ablation"])], "looprl ablate")
    assert recipe.arms == DEFAULT_ARMS and recipe.baseline == "full" and recipe.seeds == [0, 1, 2]
    arms = resolve_arms(recipe)
    assert all(arm.settings["max_steps"] == 40 and arm.settings["transfer_dataset"] for arm in arms)


def test_an_arm_s_key_wins_over_the_overrides_and_those_over_the_recipe():
    arms = {"full": {"estimator": "full"}, "slow": {"learning_rate": 1e-5}}
    full, slow = resolve_arms(ablation(arms=arms, overrides={"learning_rate": 1e-3, "eval_size": 16}))
    assert (full.settings["learning_rate"], slow.settings["learning_rate"]) == (1e-3, 1e-5)
    assert full.settings["max_completion_length"] == 16 and slow.own == {"learning_rate": 1e-5}
    assert "seed" not in full.settings and "output_dir" not in full.settings


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"estimater": "full"}, r"arm 'other': unknown key 'estimater'; did you mean estimator"),
        ({"estimator": "ful"}, r"arm 'other': estimator: expected one of: reuse, .*got \"ful\""),
        ({"neumann_steps": -1}, r"arm 'other': .*"),
        ({"estimator": "rltt", "loop_weights": "exit"}, r"arm 'other': loop_weights exit, .* exit gate; LoopLM"),
        ({"estimator": "rltt", "num_iterations": 2, "max_staleness": 1}, r"arm 'other': estimator rltt is on-policy"),
        ({"zero_stage": 2}, r"arm 'other': every run is trained in one process: set zero_stage to null"),
        ({"num_loops": 0}, r"arm 'other': num_loops must be at least 1"),
        ({"num_generations": 7}, r"arm 'other': .*7"),
        ({"reward": ["rewards/arithmetic.py:acuracy"]}, r"arm 'other': .*accuracy"),
        ({"dataset": "aritmetic"}, r"arm 'other': .*aritmetic"),
        ({"seed": 3}, r"arm 'other': seed is set by the ablation itself"),
        ({"output_dir": "x"}, r"arm 'other': output_dir is set by the ablation itself"),
        ({"dataset": "tests/data/gsm8k_train_48.jsonl"}, r"arm 'other': there are no held-out prompts"),
    ],
)
def test_what_is_wrong_in_an_arm_is_said_with_its_name(own, message):
    with pytest.raises(UserError, match=message):
        resolve_arms(ablation(arms={"full": {"estimator": "full"}, "other": own}, overrides={}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seeds": []}, "seeds must be one or more different numbers"),
        ({"seeds": [1, 1]}, r"seeds must be .*\[1, 1\]"),
        ({"seeds": [-1]}, "seeds must be"),
        ({"baseline": "ful"}, r"baseline 'ful' is not an arm.*Did you mean 'full'"),
        ({"arms": {}}, "the arms are none"),
        ({"arms": {"../elsewhere": {}}, "baseline": "../elsewhere"}, "its runs go to a folder of that name"),
        ({"overrides": {"overwrite": True}}, "overrides: overwrite is set by the ablation itself"),
    ],
)
def test_ablations_that_cannot_be_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        ablation(**settings)


def test_the_training_recipe_must_be_named_and_exist():
    with pytest.raises(UserError, match="recipe must be given"):
        parse_recipe((AblationRecipe,), [], "looprl ablate")
    with pytest.raises(UserError, match=r"no recipe 'quikstart'.*Did you mean 'quickstart'"):
        resolve_arms(ablation(recipe="quikstart"))


def test_an_arm_without_keys_of_its_own_is_the_recipe_itself():
    arms = resolve_arms(ablation(arms={"full": {"estimator": "full"}, "plain": None}))
    assert arms[1].own == {} and arms[1].settings["neumann_steps"] == 4


@pytest.mark.parametrize("name", ["report.html", "config.yaml", "a.b"])
def test_an_arm_is_not_named_like_a_file(name):
    with pytest.raises(UserError, match="use letters, digits"):
        ablation(arms={"full": {}, name: {}})
