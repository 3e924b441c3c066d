"""Settings of TRL that `LoopedGRPOConfig` refuses, each with the reason."""

from typing import Any

from looprl.errors import UserError

_POSITIVE = (
    *("num_loops", "control_every", "save_total_limit", "max_nonfinite_updates", "per_device_train_batch_size"),
    *("max_completion_length", "vllm_tensor_parallel_size", "num_processes"),
)


def refuse_biased_sampling(config: Any) -> None:
    """UserError on sampling that the trainer could not score, and on numbers that must be at least 1."""
    neutral: dict[str, tuple[Any, ...]] = {
        "top_p": (1.0,),
        "top_k": (0, -1),
        "min_p": (None, 0.0),
        "repetition_penalty": (1.0,),
        "generation_kwargs": (None, {}),
        "vllm_structured_outputs_regex": (None,),
    }
    for name, values in neutral.items():
        if getattr(config, name) not in values:
            raise UserError(
                f"{name} = {getattr(config, name)!r} changes the sampling distribution, but the trainer scores the "
                f"unchanged one, so the policy ratio would be biased: leave {name} at {values[0]!r}"
            )
    if config.temperature <= 0:
        raise UserError(f"temperature must be above 0 for sampling, got {config.temperature}")
    if not config.use_vllm or config.vllm_mode != "colocate":
        raise UserError("looprl samples with vLLM inside the trainer: use_vllm true and vllm_mode colocate")
    for name in _POSITIVE:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"{name} must be at least 1, got {value}")


def refuse_ratios(config: Any) -> None:
    """RLTT's weighted log-prob is that of no distribution, so there is no ratio of two policies to take of it."""
    for name, is_set in (
        ("several updates per rollout (num_iterations, steps_per_generation)", config.staleness > 0),
        ("off_policy_mask_threshold", config.off_policy_mask_threshold is not None),
    ):
        if is_set:
            raise UserError(
                f"estimator {config.estimator} is on-policy: {name} would compare its weighted log-probs with those "
                "of a policy. Make one update per rollout, without a mask"
            )


def refuse_unsupported(config: Any) -> None:
    """UserError on TRL's settings that looprl does not carry out, or does in another way."""
    refused = {
        "beta": (config.beta != 0, "the reference model has no states to replay from: leave beta at 0"),
        "eval_strategy": (config.eval_strategy != "no", "looprl evaluates with eval_every"),
        "resume_from_checkpoint": (
            config.resume_from_checkpoint is not None,
            "the run in output_dir is continued with --resume, or by train(resume_from_checkpoint=True)",
        ),
        "save_strategy": (config.save_strategy == "best", "there is no evaluation that it could go by"),
        "enable_jit_checkpoint": (config.enable_jit_checkpoint, "SIGTERM always saves a checkpoint"),
        "multi_objective_aggregation": (
            config.multi_objective_aggregation != "sum_then_normalize",
            "it normalises by standard deviations, which Dr. GRPO does not",
        ),
    }
    for name, (is_set, why) in refused.items():
        if is_set:
            raise UserError(f"{name} = {getattr(config, name)!r} is not supported: {why}")
    if config.vllm_importance_sampling_correction not in (None, not config.replay_is_exact):
        raise UserError(
            f"vllm_importance_sampling_correction = {config.vllm_importance_sampling_correction} contradicts "
            f"estimator {config.estimator} with replay_from {config.replay_from}: leave it out, it follows from them"
        )
    if config.vllm_importance_sampling_mode != "token_truncate" or config.vllm_importance_sampling_clip_max is None:
        raise UserError(
            "vllm_importance_sampling_mode must be token_truncate with a vllm_importance_sampling_clip_max: the "
            "other modes drop tokens or whole sequences without counting them"
        )
