"""`load_model` on folders that are not what they should be: a ModelError that names the folder."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from looprl.models import LoopLMForCausalLM, ModelError, load_model


@pytest.fixture
def saved(make_model, tmp_path):
    folder = tmp_path / "saved"
    make_model().float().save_pretrained(folder)
    return folder


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def refusal(folder) -> str:
    with pytest.raises(ModelError, match=re.escape(repr(str(folder)))) as error:
        load_model(str(folder))
    return str(error.value)


def test_an_untouched_folder_loads(saved):
    assert isinstance(load_model(str(saved)), LoopLMForCausalLM)
    assert load_model(str(saved), dtype=torch.bfloat16).dtype == torch.bfloat16


def test_nothing_there(tmp_path):
    assert "no model at" in refusal(tmp_path / "nothing")


def test_a_folder_without_a_configuration(tmp_path):
    assert "config.json" in refusal(tmp_path)


def test_a_configuration_that_is_not_json(saved):
    (saved / "config.json").write_text("{")
    assert "config.json" in refusal(saved)


def test_a_model_that_is_not_looped(tmp_path):
    LlamaConfig().save_pretrained(tmp_path)
    message = refusal(tmp_path)
    assert "'llama'" in message and "not a looped model" in message and "looplm" in message


def test_a_configuration_without_a_model_type(saved):
    settings = json.loads((saved / "config.json").read_text())
    del settings["model_type"]
    (saved / "config.json").write_text(json.dumps(settings))
    assert "not a looped model" in refusal(saved)


def test_an_impossible_configuration(saved):
    settings = json.loads((saved / "config.json").read_text()) | {"injection": "additive"}
    (saved / "config.json").write_text(json.dumps(settings))
    assert "LoopLMConfig.injection is 'additive'" in refusal(saved)


def test_a_missing_tensor(saved):
    change_tensors(saved, lambda tensors: tensors.pop("model.norm.weight"))
    message = refusal(saved)
    assert "missing" in message and "model.norm.weight" in message


def test_an_unexpected_tensor(saved):
    change_tensors(saved, lambda tensors: tensors.update({"model.gate.weight": torch.ones(3)}))
    message = refusal(saved)
    assert "unexpected" in message and "model.gate.weight" in message


def test_a_tensor_of_the_wrong_shape(saved):
    change_tensors(saved, lambda tensors: tensors.update({"model.norm.weight": torch.ones(3)}))
    message = refusal(saved)
    assert "model.norm.weight" in message and "[3]" in message and "[8]" in message


@pytest.mark.parametrize("kept", [0, 4, 200, -100])
def test_a_truncated_tensor_file(saved, kept):
    file = saved / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert "cannot be read" in refusal(saved)


def test_no_tensor_file(saved):
    (saved / "model.safetensors").unlink()
    assert "model.safetensors" in refusal(saved)
