"""The twins: two recipes that differ in how depth is trained. One core converges, and reuse is faithful on it alone.

The stored models in tests/data/twins come from these recipes; the slow test trains both anew.
"""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from looprl.data.loading import load_task_dataset
from looprl.gradients import Estimator
from looprl.models import load_model
from looprl.recipe_file import load_recipe

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "tests/data/twins"
TWINS = ("converging", "nonconverging")
NUM_LOOPS = 6


def recipe_path(twin):
    return ROOT / f"recipes/{twin}_pretrain.yaml"


def held_out(folder):
    """Token ids [64, T] of held-out problems with their worked answers, and the number of answer tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = load_task_dataset("arithmetic", "test", {"num_steps": 1}, 64, seed=0)
    answers = tokenizer(rows["answer"][:], add_special_tokens=False)["input_ids"]
    prompts = tokenizer(rows["prompt"][:])["input_ids"]
    return torch.tensor([prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]), len(answers[0])


@torch.no_grad()
def last_residual(folder):
    """|z_R - z_{R-1}| / |z_R|, the mean over held-out tokens."""
    model, (ids, _) = load_model(folder).eval(), held_out(folder)
    before, after = (model(ids, num_loops=loops).state for loops in (NUM_LOOPS - 1, NUM_LOOPS))
    return float(((after - before).norm(dim=-1) / after.norm(dim=-1)).mean())


def cosine_to_full(folder, neumann_steps):
    """Cosine of a policy gradient by penultimate replay to the one by full BPTT; advantages of random sign."""
    model, (ids, completion) = load_model(folder).double().eval(), held_out(folder)
    signs = torch.randint(0, 2, (len(ids), 1), generator=torch.Generator().manual_seed(0)) * 2.0 - 1

    def gradient(estimator):
        logits = model(ids[:, :-1], num_loops=NUM_LOOPS, loop_runner=estimator, logits_to_keep=completion).logits
        logps = logits.log_softmax(-1).gather(-1, ids[:, -completion:, None]).squeeze(-1)
        gradients = torch.autograd.grad(-(signs * logps).sum(), list(model.parameters()))
        return torch.cat([gradient.flatten() for gradient in gradients])

    full = gradient(Estimator.preset("full"))
    replayed = gradient(Estimator.preset("recompute", neumann_steps=neumann_steps))
    return float(torch.nn.functional.cosine_similarity(full, replayed, dim=0))


def test_twin_recipes_differ_only_in_how_depth_is_trained():
    converging, nonconverging = (load_recipe(recipe_path(twin)) for twin in TWINS)
    differing = {key for key in converging | nonconverging if converging.get(key) != nonconverging.get(key)}
    assert differing == {"depth_prior", "loops_recorded"}
    assert nonconverging["loops_recorded"] == nonconverging["depth_mean"] == NUM_LOOPS  # full BPTT


@pytest.mark.parametrize("twin", TWINS)
def test_stored_twin_has_its_recipes_architecture(twin):
    config = load_model(STORED / twin).config
    expected = load_recipe(recipe_path(twin))["model_config"]
    assert {key: getattr(config, key) for key in expected} == expected


def test_only_the_converging_twin_stands_still_after_its_last_loop():
    assert last_residual(STORED / "converging") < 0.03
    assert last_residual(STORED / "nonconverging") > 0.3


def test_four_neumann_steps_give_the_full_gradient_on_the_converging_twin_only():
    assert cosine_to_full(STORED / "converging", 4) > 0.9995
    assert cosine_to_full(STORED / "nonconverging", 4) < 0.95


@pytest.mark.slow  # each trains for about a minute on a free core
@pytest.mark.timeout(1200)
def test_recipes_train_a_pair_that_differs_in_convergence(looprl, tmp_path):
    models = {}
    for twin in TWINS:
        output = looprl("pretrain", recipe_path(twin), "--output_dir", tmp_path / twin)
        models[twin] = Path(output.split("model: ")[1].strip())
    assert last_residual(models["converging"]) < 0.04
    assert last_residual(models["nonconverging"]) > 0.1
