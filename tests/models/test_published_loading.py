"""Published checkpoints as people find them: other files, other storage, and what must be refused by name."""

import json
import pickle
import re
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from looprl.models import FAMILIES, ModelError, load_model
from tests.published import MODELS, random_published

IDS = torch.tensor([[3, 14, 1, 5, 9]])


@pytest.fixture
def saved(tmp_path):
    """saved(name, **changes): a model's logits and the folder that it was saved to."""

    def save(name, **changes):
        model, folder = random_published(name, **changes), tmp_path / "model"
        model.save_pretrained(folder)
        return logits(model), folder

    return save


@torch.no_grad()
def logits(model):
    return model(IDS, num_loops=2).logits


def refusal(folder):
    with pytest.raises(ModelError, match=re.escape(repr(str(folder)))) as error:
        load_model(str(folder))
    return str(error.value)


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def as_bin(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def as_shards(folder, ending):
    """Two files and an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem, names = {"safetensors": "model", "bin": "pytorch_model"}[ending], sorted(tensors)
    places = {}
    for number, held in enumerate((names[::2], names[1::2]), 1):
        shard = f"{stem}-0000{number}-of-00002.{ending}"
        places |= dict.fromkeys(held, shard)
        (save_file if ending == "safetensors" else torch.save)({n: tensors[n] for n in held}, folder / shard)
    (folder / f"{stem}.{ending}.index.json").write_text(json.dumps({"weight_map": places}))


FILES = {
    "safetensors": lambda folder: None,
    "bin": as_bin,
    "sharded safetensors": lambda folder: as_shards(folder, "safetensors"),
    "sharded bin": lambda folder: as_shards(folder, "bin"),
}


@pytest.mark.parametrize("change", FILES.values(), ids=FILES)
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_comes_back_from_any_kind_of_file(name, change, saved):
    expected, folder = saved(name)
    change(folder)
    assert torch.equal(logits(load_model(str(folder))), expected)


@pytest.mark.parametrize("name", MODELS)
def test_a_tied_head_may_be_stored_and_an_untied_one_must_be(name, saved):
    expected, folder = saved(name, tie_word_embeddings=True)
    embedding = FAMILIES[MODELS[name][0]].published_name("model.embed_tokens.weight")
    change_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[embedding].clone()}))
    assert torch.equal(logits(load_model(str(folder))), expected)
    change_tensors(folder, lambda tensors: tensors["lm_head.weight"].add_(1))
    message = refusal(folder)
    assert "model.safetensors" in message and "'lm_head.weight' differs" in message
    expected, folder = saved(name, tie_word_embeddings=False)
    assert torch.equal(logits(load_model(str(folder))), expected)
    change_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert "missing tensor 'lm_head.weight' of shape [" in refusal(folder)


@pytest.mark.parametrize("name", MODELS)
def test_transformers_auto_classes_load_what_was_saved(name, saved):
    expected, folder = saved(name)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(folder)), expected)


@pytest.mark.parametrize("name", MODELS)
def test_half_precision_keeps_the_rotary_frequencies(name, saved):
    expected, folder = saved(name)
    half = load_model(str(folder), dtype=torch.bfloat16)
    frequencies = half.model.rope.inverse_frequencies
    assert half.dtype == torch.bfloat16 and frequencies.dtype == torch.float32
    assert torch.equal(frequencies, load_model(str(folder)).to(torch.bfloat16).model.rope.inverse_frequencies)
    assert (logits(half).float() - expected).abs().mean() < 0.1 * expected.std()


@pytest.mark.parametrize("name", MODELS)
def test_the_body_is_told_from_the_tensors(name, saved):
    expected, folder = saved(name)
    settings = json.loads((folder / "config.json").read_text())
    settings.pop("body", None)
    (folder / "config.json").write_text(json.dumps(settings))
    assert torch.equal(logits(load_model(str(folder))), expected)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "module._orig_mod."])
@pytest.mark.parametrize("dropped", [("model_type",), ("model_type", "_class_name")], ids=["named", "unnamed"])
def test_parcae_is_found_without_a_model_type_and_under_its_wrappers_names(prefix, dropped, saved):
    expected, folder = saved("parcae", recurrent_iteration_method="per-sequence")
    settings = json.loads((folder / "config.json").read_text())
    kept = {k: v for k, v in settings.items() if k not in (*dropped, "value_tables", "value_gates")}
    (folder / "config.json").write_text(json.dumps(kept))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({prefix + name: tensor for name, tensor in tensors.items()}, folder / "model.pt")
    assert torch.equal(logits(load_model(str(folder))), expected)


def test_a_tensor_that_is_there_twice_is_refused(saved):
    _, folder = saved("parcae")
    change_tensors(folder, lambda tensors: tensors.update({"module.transformer.C.weight": torch.ones(64, 64)}))
    assert "tensor 'transformer.C.weight' is there twice" in refusal(folder)


@torch.no_grad()
def test_padding_columns_are_masked_where_logits_are_for_sampling_only():
    model = random_published("parcae")
    whole, last = model(IDS).logits, model(IDS, logits_to_keep=2).logits
    assert whole.shape == (1, 5, 128) and whole.isfinite().all()
    assert (last[..., 97:] == float("-inf")).all()
    torch.testing.assert_close(last[..., :97], whole[:, -2:, :97])
    generated = model.generate(IDS, max_new_tokens=40, do_sample=True, eos_token_id=None)
    assert generated.shape == (1, 45) and generated.max() < 97


class Payload:
    """What a hostile `.bin` file would run."""

    def __reduce__(self):
        return print, ("executed",)


def test_a_bin_file_that_holds_code_is_refused_and_not_executed(saved, capsys):
    _, folder = saved("huginn")
    as_bin(folder)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"transformer.wte.weight": Payload()}))
    assert "pytorch_model.bin cannot be read as tensors" in refusal(folder)
    torch.save({"transformer.wte.weight": Payload()}, folder / "pytorch_model.bin")
    assert "pytorch_model.bin cannot be read as tensors" in refusal(folder)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("change", [as_bin, lambda folder: as_shards(folder, "safetensors")], ids=["bin", "shards"])
def test_a_truncated_file_is_named(change, saved):
    _, folder = saved("llama")
    change(folder)
    file = max(folder.glob("*-of-00002.*"), default=folder / "pytorch_model.bin")
    file.write_bytes(file.read_bytes()[:-200])
    assert f"{file.name} cannot be read" in refusal(folder)


def test_a_missing_shard_is_named(saved):
    _, folder = saved("llama")
    as_shards(folder, "safetensors")
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "shard model-00002-of-00002.safetensors is missing" in refusal(folder)


NORM = "transformer.coda.0.norm_2.weight"


def test_what_does_not_fit_is_named_with_its_file_and_what_was_expected(saved):
    _, folder = saved("huginn")
    change_tensors(folder, lambda tensors: tensors.update({NORM: torch.ones(3)}))
    assert f"model.safetensors: tensor '{NORM}' has shape [3], expected [64]" in refusal(folder)
    change_tensors(folder, lambda tensors: tensors.update({NORM: torch.ones(64, dtype=torch.int8)}))
    assert f"model.safetensors: tensor '{NORM}' is torch.int8, expected floating point" in refusal(folder)
    change_tensors(folder, lambda tensors: tensors.pop(NORM))
    assert f"model.safetensors: missing tensor '{NORM}' of shape [64]" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("huginn", dict(injection_type="add"), "injection_type is 'add'; supported: linear"),
        ("huginn", dict(test_time_noise=0.1), "test_time_noise is 0.1; supported: 0"),
        ("llama", dict(rope_scaling=dict(rope_type="dynamic", factor=2.0)), "'dynamic'; supported are linear, yarn"),
        (
            "llama",
            dict(rope_scaling=dict(rope_type="llama3")),
            "rope_scaling of type 'llama3' cannot be used: Missing .*'factor'",
        ),
        ("llama", dict(num_key_value_heads=3), r"num_key_value_heads \(3\) must divide"),
        ("huginn", dict(mean_recurrence=0), "mean_recurrence must be a whole number of at least 1, got 0"),
    ],
)
def test_a_configuration_that_is_not_run_is_refused_by_its_key(name, changes, message, saved):
    _, folder = saved(name)
    change_config(folder, **changes)
    assert re.search(message, refusal(folder))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(model_type="iquestloopcoder", architectures=["IQuestLoopCoderForCausalLM"]), "keys and values"),
        (dict(model_type="hrm_text"), "prefix mask"),
        (dict(model_type="other", architectures=["LoopFormerForCausalLM"]), "conditioned on the step"),
    ],
)
def test_a_loop_that_is_no_map_of_its_state_is_refused_with_the_reason(settings, reason, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(settings))
    message = refusal(tmp_path)
    assert reason in message and "replaying a loop" in message


CLASH = """
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
for name in {names}:
    theirs = type("Theirs", (LlamaConfig,), dict(model_type=name))
    AutoConfig.register(name, theirs)
    AutoModelForCausalLM.register(theirs, type("TheirModel", (LlamaForCausalLM,), dict(config_class=theirs)))
import looprl.models
for name, family in looprl.models.FAMILIES.items():
    assert type(AutoConfig.for_model(name)) is family.config_class, name
"""


def test_a_transformers_that_has_these_model_types_itself_does_not_clash():
    code = CLASH.format(names=list(FAMILIES))
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert type(AutoConfig.for_model("huginn_raven")) is FAMILIES["huginn_raven"].config_class
