"""Settings that would train something else than they say are refused, with what to do."""

import pytest

from looprl.gradients import AdjointSolver, Estimator
from looprl.training.config import LoopedGRPOConfig


def config(tmp_path, **settings):
    return LoopedGRPOConfig(output_dir=str(tmp_path), **settings)


def test_defaults_are_dr_grpo_with_penultimate_reuse(tmp_path):
    args = config(tmp_path)
    assert (args.loss_type, args.scale_rewards, args.beta) == ("dr_grpo", "none", 0.0)
    assert args.make_estimator() == Estimator("rollout", 1, AdjointSolver(4), "penultimate")
    assert args.vllm_importance_sampling_correction is False
    assert (args.gradient_checkpointing, args.logging_steps) == (False, 1)


def test_fp32_on_a_cpu_unless_asked_otherwise(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert config(tmp_path).bf16 is False
    assert config(tmp_path, bf16=True).bf16 is True


@pytest.mark.parametrize(
    "settings",
    [{"replay_from": "endpoint"}, {"estimator": "recompute"}, {"estimator": "full"}, {"estimator": "rltt"}],
    ids=lambda settings: "-".join(settings.values()),
)
def test_importance_correction_is_on_wherever_the_replay_is_not_the_sampler_s_last_loop(tmp_path, settings):
    args = config(tmp_path, **settings)
    assert args.vllm_importance_sampling_correction is True
    assert args.vllm_importance_sampling_mode == "token_truncate"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_p": 0.9}, "top_p = 0.9 changes the sampling distribution"),
        ({"top_k": 50}, "top_k = 50"),
        ({"min_p": 0.1}, "min_p = 0.1"),
        ({"repetition_penalty": 1.1}, "repetition_penalty = 1.1"),
        ({"generation_kwargs": {"presence_penalty": 1.0}}, "generation_kwargs"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"use_vllm": False}, "use_vllm true"),
        ({"vllm_mode": "server"}, "vllm_mode colocate"),
        ({"num_loops": 0}, "num_loops must be at least 1"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size must be at least 1"),
        ({"max_completion_length": 0}, "max_completion_length must be at least 1"),
        ({"vllm_tensor_parallel_size": 0}, "vllm_tensor_parallel_size must be at least 1"),
        ({"num_processes": 0}, "num_processes must be at least 1"),
        ({"neumann_steps": -1}, "neumann_steps must be 0 or more"),
        ({"estimator": "reus"}, "choose from reuse, recompute"),
        ({"estimator": "truncated"}, "needs loops_recorded"),
        ({"num_generations": 7}, "must be divisible by num_generations"),
        ({"num_iterations": 2}, "set max_staleness to 1"),
        ({"steps_per_generation": 3}, "set max_staleness to 2"),
        ({"steps_per_generation": 6, "gradient_accumulation_steps": 4}, "set max_staleness to 1"),
        ({"beta": 0.04}, "beta = 0.04 is not supported"),
        ({"eval_strategy": "steps", "eval_steps": 5}, "looprl evaluates with eval_every"),
        ({"resume_from_checkpoint": "here"}, "continued with --resume"),
        ({"save_strategy": "best"}, "no evaluation that it could go by"),
        ({"save_total_limit": 0}, "save_total_limit must be at least 1"),
        ({"max_nonfinite_updates": 0}, "max_nonfinite_updates must be at least 1"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "normalises by standard deviations"),
        ({"vllm_importance_sampling_correction": True}, "contradicts estimator reuse"),
        ({"replay_from": "endpoint", "vllm_importance_sampling_correction": False}, "contradicts"),
        ({"vllm_importance_sampling_mode": "sequence_mask"}, "must be token_truncate"),
        ({"vllm_importance_sampling_clip_max": None}, "must be token_truncate"),
        ({"estimator": "rltt", "loop_weights": "linear"}, "choose from uniform, progressive, exit"),
        ({"estimator": "rltt", "num_iterations": 2, "max_staleness": 1}, "rltt is on-policy: several updates"),
        ({"estimator": "rltt", "off_policy_mask_threshold": 0.5}, "rltt is on-policy: off_policy_mask_threshold"),
    ],
)
def test_a_setting_that_biases_or_contradicts_is_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **settings)


def staleness_by_simulation(micro_batches, per_update, updates=200):
    """Largest number of updates between a rollout and the update that one of its micro-batches takes part in."""
    return max(
        batch // per_update - (batch - batch % micro_batches) // per_update for batch in range(per_update * updates)
    )


@pytest.mark.parametrize("accumulation", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("per_rollout", [1, 2, 3, 4, 6, 8])
def test_staleness_is_that_of_the_oldest_micro_batch(tmp_path, accumulation, per_rollout):
    args = config(
        tmp_path, gradient_accumulation_steps=accumulation, steps_per_generation=per_rollout, max_staleness=99
    )
    assert args.staleness == staleness_by_simulation(per_rollout, accumulation)
    assert config(
        tmp_path, gradient_accumulation_steps=4, steps_per_generation=1, num_iterations=2
    ).staleness == staleness_by_simulation(2, 4)


def test_several_updates_per_rollout_are_allowed_when_asked_for(tmp_path):
    assert config(tmp_path, num_iterations=2, max_staleness=1).num_iterations == 2
