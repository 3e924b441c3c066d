"""What the trainer cannot train is refused before an engine is started."""

import pytest
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from looprl.data.tokenizer import build_tokenizer
from looprl.measure.evaluate import EvalSet
from looprl.models import ModelError
from looprl.training.config import LoopedGRPOConfig
from looprl.training.trainer import LoopedGRPOTrainer
from tests.training.conftest import make_model

ROWS = Dataset.from_dict({"prompt": ["Tom has 12 apples.\n"]})


def reward(prompts, **kwargs):
    return [0.0] * len(prompts)


def build(tmp_path, model=None, rows=ROWS, settings=None, **arguments):
    tokenizer = build_tokenizer()
    args = LoopedGRPOConfig(output_dir=str(tmp_path), max_completion_length=8, **(settings or {}))
    return LoopedGRPOTrainer(
        model or make_model(tokenizer), reward, args, rows, processing_class=tokenizer, **arguments
    )


def test_peft_adapters_are_not_supported(tmp_path):
    with pytest.raises(ValueError, match=r"PEFT adapters are not supported.*merge_and_unload"):
        build(tmp_path, peft_config=object())
    model = make_model(build_tokenizer())
    model.peft_config = {"default": object()}
    with pytest.raises(ValueError, match="PEFT adapters are not supported"):
        build(tmp_path, model)


def test_a_model_that_is_not_looped(tmp_path):
    llama = LlamaForCausalLM(
        LlamaConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=1, intermediate_size=16, vocab_size=400)
    )
    with pytest.raises(ModelError, match="LlamaForCausalLM is not a looped model"):
        build(tmp_path, llama)


def test_a_prompt_longer_than_the_window_is_named_with_its_row(tmp_path):
    rows = Dataset.from_dict({"prompt": ["short\n", "12 " * 50]})
    with pytest.raises(ValueError, match="row 1"):
        build(tmp_path, rows=rows, settings={"vllm_max_model_length": 40})


def test_fewer_prompts_than_a_rollout_takes_are_refused(tmp_path):
    settings = {"per_device_train_batch_size": 32, "num_generations": 8}
    with pytest.raises(ValueError, match=r"1 prompts, but a rollout takes 4 \(32 completions, 8 each\)"):
        build(tmp_path, settings=settings)


def test_evaluation_prompts_must_fit_the_window_too(tmp_path):
    rows = Dataset.from_dict({"prompt": ["12 " * 50]})
    with pytest.raises(ValueError, match="evaluation prompt of row 0"):
        build(tmp_path, eval_dataset=rows, settings={"vllm_max_model_length": 40})


def test_the_window_holds_what_is_sampled_in_evaluations(tmp_path):
    longer = EvalSet(ROWS, reward, max_completion_length=60, name="transfer")
    with pytest.raises(ValueError, match="completions of the transfer prompts leave no room"):
        build(tmp_path, eval_sets=[longer], settings={"vllm_max_model_length": 60})


def test_a_trainer_that_sees_one_of_two_launched_processes_is_an_error(tmp_path, monkeypatch):
    tokenizer = build_tokenizer()
    args = LoopedGRPOConfig(output_dir=str(tmp_path), max_completion_length=8)  # joined nobody
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(ValueError, match="launcher started 2 processes, but the trainer sees 1"):
        LoopedGRPOTrainer(make_model(tokenizer), reward, args, ROWS, processing_class=tokenizer)
