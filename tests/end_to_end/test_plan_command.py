"""`looprl plan RECIPE`: the figures of a model that is not there, and of one that is."""

import json
import os
import subprocess
import sys

import pytest
import torch

from looprl.cli import main
from looprl.gradients import Estimator
from looprl.measure.activations import WeightlessModel
from looprl.models import load_model
from looprl.models.registry import read_outline
from tests.published import MODELS, random_published, save_published

QUICKSTART = "recipes/quickstart.yaml"
HUGINN = dict(  # the published shape of Huginn-0125
    model_type="huginn_raven", n_embd=5280, n_heads=55, intermediate_size=17920, vocab_size=65536,
    padded_vocab_size=65536, block_size=4096, n_layers_in_prelude=2, n_layers_in_recurrent_block=4,
    n_layers_in_coda=2, mean_recurrence=32, tie_embeddings=True, qk_bias=True, bias=False, torch_dtype="bfloat16",
)  # fmt: skip


@pytest.fixture
def plan(tmp_path, capsys):
    """Plan, and return the JSON file's content with what was printed."""

    def planned(recipe, *flags):
        assert main(["plan", recipe, *map(str, flags), "--json", str(tmp_path / "plan.json")]) == 0
        return json.loads((tmp_path / "plan.json").read_text()), " ".join(capsys.readouterr().out.split())

    return planned


@pytest.fixture
def refused(capsys):
    def failing(*arguments):
        assert main(["plan", *map(str, arguments)]) == 2
        return capsys.readouterr().err

    return failing


def sizes(content, where="device"):
    return {each["name"]: each[where] for each in content["held"]}


@pytest.fixture
def huginn(tmp_path):
    """A folder with a config.json and nothing else."""
    (tmp_path / "huginn").mkdir()
    (tmp_path / "huginn/config.json").write_text(json.dumps(HUGINN))
    return tmp_path / "huginn"


def test_huginn_is_planned_from_its_configuration_alone(plan, huginn):
    flags = ("--model", huginn, "--num_processes", 8, "--zero_stage", 3, "--bf16", "true", "--prompt_length", 256)
    content, printed = plan("recipes/gsm8k.yaml", *flags)
    parameters = content["parameters"]
    assert parameters == pytest.approx(3.5e9, rel=0.02) and f"{parameters:,} parameters in bfloat16" in printed
    held = sizes(content)
    share = -(-parameters // 8)
    assert held["weights"] == held["gradients"] == 2 * share
    assert (held["Adam's moments"], held["master weights"]) == (8 * share, 4 * share)
    # eight layers, or two and two with four in each of 32 loops; 55 heads of 96, keys and values, two bytes
    assert content["kv_per_token"] == {"terminal": 8 * 2 * 5280 * 2, "per_loop": (4 + 4 * 32) * 2 * 5280 * 2}
    assert content["state_per_token"] == 5280 * 2
    tokens = 32 * 8 * (256 + 512)
    assert content["window"] == 768 and content["completions"] == 256
    assert held["rollout engine: keys and values"] == tokens * content["kv_per_token"]["terminal"]
    assert held["states of the rollout"] == sizes(content, "host")["states of the rollout"] == tokens * 10560
    assert held["rollout engine: weights"] == 2 * (parameters + 65536 * 5280)
    assert content["recorded"]["full"] > 10 * content["recorded"]["reuse"] > 0
    assert held["activations of a micro-batch, reuse"] == content["recorded"]["reuse"]
    assert content["together"]["device"] == sum(held.values())
    assert "ZeRO-3 also gathers the core" in printed and "no safetensors files at hand" in printed


def test_without_prompts_every_sequence_fills_the_model(plan, huginn):
    content, printed = plan("recipes/gsm8k.yaml", "--model", huginn)
    assert content["window"] == 4096 and "--prompt_length" in printed and "no tokenizer" in printed


def test_a_hub_name_needs_no_more_than_its_cached_configuration(huginn, tmp_path):
    """In a process of its own, because the cache's place is read at import."""
    cached = tmp_path / "hub/models--someone--huginn"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs/main").write_text("a" * 40)
    (cached / "snapshots").mkdir()
    huginn.rename(cached / "snapshots" / ("a" * 40))
    command = [sys.executable, "-m", "looprl", "plan", "recipes/gsm8k.yaml", "--model", "someone/huginn"]
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*command, "--prompt_length", "256"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "someone/huginn: 3,564,976,800 parameters in bfloat16" in done.stdout


def test_the_window_is_the_one_that_training_takes(plan):
    content, printed = plan(QUICKSTART)
    assert content["parameters"] == 189_248 and "189,248 parameters in float32" in printed
    assert content["window"] == 36  # of 20 prompt tokens at most, and 16 of the completion
    assert content["completions"] == content["micro_batch"] == 192
    model = load_model("recipes/quickstart/model")
    outline = WeightlessModel(model.config, torch.float32)
    # the last token of a sequence is not fed
    assert content["recorded"]["reuse"] == outline.recorded_bytes(Estimator.preset("reuse", 4), 6, 192, 35, 16)
    weights = sum(p.nbytes for p in model.parameters())
    assert sizes(content)["weights"] == weights and sizes(content)["Adam's moments"] == 2 * weights
    assert "master weights" not in sizes(content) and "no safetensors" not in printed
    assert plan(QUICKSTART, "--vllm_max_model_length", 64)[0]["window"] == 64


def test_what_the_recipe_changes_changes_the_plan(plan):
    first, _ = plan(QUICKSTART)
    accumulated, _ = plan(QUICKSTART, "--gradient_accumulation_steps", 2, "--per_device_train_batch_size", 96)
    assert accumulated["completions"] == 192 and accumulated["micro_batch"] == 96
    assert accumulated["recorded"]["reuse"] < 0.6 * first["recorded"]["reuse"]
    checkpointed, printed = plan(QUICKSTART, "--estimator", "full_checkpointed", "--kv_policy", "per_loop")
    assert list(checkpointed["recorded"]) == ["full"] and "full_checkpointed are not counted" in printed
    assert sizes(checkpointed)["states of the rollout"] == 0 < sizes(checkpointed, "host")["states of the rollout"]
    tokens = 192 * 36
    assert sizes(checkpointed)["rollout engine: keys and values"] == tokens * first["kv_per_token"]["per_loop"]
    deep, _ = plan(QUICKSTART, "--num_loops", 12)
    assert deep["recorded"]["reuse"] == first["recorded"]["reuse"]
    assert deep["recorded"]["full"] > 1.7 * first["recorded"]["full"]
    assert deep["kv_per_token"]["terminal"] == first["kv_per_token"]["terminal"]
    half, _ = plan(QUICKSTART, "--model_init_kwargs", '{"dtype": "bfloat16"}')
    assert half["weights"] == "bfloat16" and 2 * half["state_per_token"] == first["state_per_token"]


def test_a_deepspeed_file_is_read_as_training_would(plan):
    ours, _ = plan(QUICKSTART, "--num_processes", 4, "--zero_stage", 2)
    theirs, _ = plan(QUICKSTART, "--num_processes", 4, "--deepspeed", "recipes/deepspeed/zero2.json")
    assert ours == theirs
    offloaded, _ = plan(QUICKSTART, "--num_processes", 4, "--zero_stage", 2, "--offload_optimizer", "true")
    assert sizes(offloaded)["Adam's moments"] == 0 < sizes(offloaded, "host")["Adam's moments"]
    assert sizes(offloaded)["weights"] == sizes(ours)["weights"] == 4 * 189_248


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("with_weights", [True, False])
def test_parameters_are_those_of_the_loaded_model(name, with_weights, tmp_path):
    folder = save_published(name, tmp_path / name, torch.bfloat16, kv_policy="per_loop")
    model = load_model(str(folder))
    if not with_weights:
        (folder / "model.safetensors").unlink()
    config, dtype, seen = read_outline(str(folder))
    assert (dtype, seen, config.kv_policy) == (torch.bfloat16, with_weights, "per_loop")
    assert WeightlessModel(config, dtype).parameters == sum(p.numel() for p in model.parameters())


def test_precision_is_that_of_the_tensors_where_the_configuration_names_none(tmp_path):
    random_published("olmo2").to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="100KB")
    settings = json.loads((tmp_path / "config.json").read_text())
    del settings["dtype"], settings["body"]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    config, dtype, _ = read_outline(str(tmp_path))
    assert dtype == torch.bfloat16 == load_model(str(tmp_path)).dtype and config.body == "olmo2"
    random_published("olmo2").save_pretrained(tmp_path / "whole")
    (tmp_path / "whole/model.safetensors").rename(tmp_path / "model.safetensors")  # which is read before the shards
    assert read_outline(str(tmp_path))[1] == torch.float32 == load_model(str(tmp_path)).dtype


def test_what_cannot_be_planned_is_refused(refused, tmp_path):
    assert "model is needed" in refused("recipes/gsm8k.yaml")
    assert "no model at" in refused(QUICKSTART, "--model", tmp_path)
    assert "2 processes need zero_stage" in refused(QUICKSTART, "--num_processes", 2)
    assert "exclude each other" in refused(QUICKSTART, "--zero_stage", 1, "--deepspeed", "recipes/deepspeed/zero1.json")
    assert "offload_optimizer needs zero_stage" in refused(QUICKSTART, "--offload_optimizer", "true")
    assert "dtype is 'half-ish'" in refused(QUICKSTART, "--model_init_kwargs", '{"dtype": "half-ish"}')
    assert "cannot be read as JSON" in refused(QUICKSTART, "--deepspeed", tmp_path / "none.json")
    assert "no function 'acuracy'" in refused(QUICKSTART, "--reward", "rewards/arithmetic.py:acuracy")
    assert "--prompt_length N" in refused(QUICKSTART, "--dataset", tmp_path / "none.jsonl")
    assert "needs whole weights" in refused(QUICKSTART, "--zero_stage", 3, "--control_every", 1)
    assert "the model has 1024 positions" in refused(QUICKSTART, "--vllm_max_model_length", 2000)
    assert "must have room for a prompt" in refused(QUICKSTART, "--vllm_max_model_length", 16)
    assert "dtype is 'int8'" in refused(QUICKSTART, "--model_init_kwargs", '{"torch_dtype": "int8"}')
    assert "publishes no distribution" in refused(QUICKSTART, "--initial_state", "drawn")
    assert "cannot be written" in refused(QUICKSTART, "--json", tmp_path)
    for content, words in (
        ("[1]", "holds a list"),
        ('{"bf16": true}', "bf16 is True"),
        ('{"zero_optimization": 3}', "zero_optimization is 3"),
        ('{"zero_optimization": {"stage": "auto"}}', "stage is 'auto'"),
    ):
        (tmp_path / "deepspeed.json").write_text(content)
        assert words in refused(QUICKSTART, "--deepspeed", tmp_path / "deepspeed.json")
    assert "prompt_length must be at least 1" in refused(QUICKSTART, "--prompt_length", 0)


def test_no_engine_and_no_weights_are_touched():
    """The quickstart's weights are not even opened for reading tensors, and vLLM is not imported."""
    script = (
        "import sys, safetensors.torch, torch\n"
        "def never(*args, **kwargs): raise AssertionError('weights were loaded')\n"
        "safetensors.torch.load_file = torch.load = never\n"
        "from looprl.cli import main\n"
        f"code = main(['plan', '{QUICKSTART}'])\n"
        "assert 'vllm' not in sys.modules\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
