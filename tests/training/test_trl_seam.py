"""Fails loudly when the private parts of TRL that looprl stands on move."""

import inspect
from importlib.metadata import version

import pytest
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer

from looprl.training.colocated_rollouts import ColocatedRollouts
from looprl.training.trl_seam import TRL_VERSION, GRPOSeam


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_trl_is_the_version_that_the_seam_was_written_for():
    assert version("trl").startswith(f"{TRL_VERSION}.")


def test_the_trainer_builds_its_generation_backend_under_the_name_that_is_replaced():
    assert grpo_trainer.VLLMGeneration is VLLMGeneration
    source = inspect.getsource(GRPOTrainer.__init__)
    assert "self.vllm_generation = VLLMGeneration(" in source
    for setting in ("processing_class=", "max_num_seqs="):
        assert setting in source


@pytest.mark.parametrize("method", ["sync_weights", "generate"])
def test_the_rollouts_have_the_signature_of_trl_s_backend(method):
    assert parameters(getattr(ColocatedRollouts, method)) == parameters(getattr(VLLMGeneration, method))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("_generate_and_score_completions", ["self", "inputs"]),
        ("_calculate_rewards", ["self", "inputs", "prompts", "completions", "completion_ids_list"]),
        ("_compute_loss", ["self", "model", "inputs"]),
        ("training_step", ["self", "model", "inputs", "num_items_in_batch"]),
        ("log", ["self", "logs", "start_time"]),
    ],
)
def test_the_overridden_methods_have_the_signatures_that_were_overridden(method, expected):
    assert parameters(getattr(GRPOTrainer, method)) == expected


def test_scoring_has_the_signature_that_was_overridden():
    theirs = parameters(GRPOTrainer._get_per_token_logps_and_entropies)
    ours = parameters(GRPOSeam._get_per_token_logps_and_entropies)
    assert theirs[: len(ours) - 1] == ours[:-1]


@pytest.mark.parametrize(
    ("method", "key"),
    [
        ("_generate_and_score_completions", key)
        for key in (
            "prompt_ids",
            "prompt_mask",
            "completion_ids",
            "completion_mask",
            "advantages",
            "old_per_token_logps",
            "sampling_per_token_logps",
            "importance_sampling_ratio",
        )
    ],
)
def test_the_batch_has_the_keys_that_are_read_and_written(method, key):
    assert f'"{key}"' in inspect.getsource(getattr(GRPOTrainer, method))
