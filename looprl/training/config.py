"""Settings of `LoopedGRPOTrainer`: TRL's `GRPOConfig` with looprl's keys and Dr. GRPO as the default."""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import SchedulerType
from trl import GRPOConfig

from looprl.errors import UserError
from looprl.gradients import Estimator
from looprl.gradients.estimator import Preset, ReplayFrom
from looprl.rollout.record import KVPolicy


@dataclass
class LoopedGRPOConfig(GRPOConfig):
    """TRL's GRPO settings, those of the looped replay, and defaults of Dr. GRPO (Liu et al., 2025, arXiv:2503.20783).

    Raises ValueError or UserError on settings that contradict each other or would bias the policy ratio.
    """

    num_loops: int | None = field(
        default=None, metadata={"help": "Loops R of rollouts and training; by default the model's own."}
    )
    estimator: Preset = field(default="reuse", metadata={"help": "Gradient estimator."})
    replay_from: ReplayFrom = field(
        default="penultimate",
        metadata={"help": "State that the replayed loop starts from: entering the last loop, or leaving it."},
    )
    neumann_steps: int = field(default=4, metadata={"help": "Neumann steps K: J^T products after the replayed loop."})
    loops_recorded: int | None = field(default=None, metadata={"help": "Loops b that estimator 'truncated' records."})
    kv_policy: KVPolicy = field(default="terminal", metadata={"help": "K/V sharing between loops in rollouts."})
    own_process_engine: bool = field(
        default=False,
        metadata={"help": "Run the rollout engine in its own process; rollouts then do not repeat exactly."},
    )
    max_staleness: int = field(
        default=0, metadata={"help": "Optimizer steps that a rollout may be behind the weights it updates."}
    )

    use_vllm: bool = field(default=True, metadata={"help": "Rollouts run in vLLM; this must stay true."})
    loss_type: str = field(default="dr_grpo", metadata={"help": "Loss; Dr. GRPO divides by a constant length."})
    scale_rewards: str = field(
        default="none", metadata={"help": "Dr. GRPO does not divide advantages by their standard deviation."}
    )
    beta: float = field(default=0.0, metadata={"help": "KL coefficient; 0 needs no reference model."})
    bf16: bool | None = field(
        default=None, metadata={"help": "bfloat16 training; by default on a GPU and not on a CPU."}
    )
    gradient_checkpointing: bool = field(
        default=False, metadata={"help": "Recompute activations in the backward pass."}
    )
    logging_steps: float = field(default=1, metadata={"help": "Log every N steps."})
    lr_scheduler_type: SchedulerType | str = field(
        default="constant_with_warmup", metadata={"help": "Learning-rate schedule."}
    )
    adam_beta2: float = field(default=0.99, metadata={"help": "AdamW beta2."})
    save_strategy: str = field(
        default="no", metadata={"help": "The final weights are always saved; this adds checkpoints on the way."}
    )
    report_to: str | list[str] | None = field(
        default="none", metadata={"help": "Trackers besides the run folder: tensorboard, wandb, ..."}
    )
    vllm_importance_sampling_mode: str = field(
        default="token_truncate", metadata={"help": "How endpoint replay corrects its mismatch."}
    )
    disable_tqdm: bool | None = field(default=True, metadata={"help": "TRL's own progress bar; looprl shows its own."})

    def __post_init__(self) -> None:
        if self.bf16 is None:
            self.bf16 = torch.cuda.is_available() and not self.fp16
        if not torch.cuda.is_available():
            self.use_cpu = True
        self._refuse_biased_sampling()
        self.vllm_importance_sampling_correction = not self.replay_is_exact
        super().__post_init__()
        self.make_estimator()
        updates = self.num_iterations * max(self.steps_per_generation // self.gradient_accumulation_steps, 1)
        if updates - 1 > self.max_staleness:
            raise UserError(
                f"num_iterations and steps_per_generation make {updates} updates per rollout, so the last one is "
                f"{updates - 1} steps stale: set max_staleness to {updates - 1}, or make one update per rollout"
            )

    @property
    def replay_is_exact(self) -> bool:
        """Whether the replay is the sampler's very last loop, so that sampler log-probs are the old log-probs."""
        return self.estimator == "reuse" and self.replay_from == "penultimate"

    def make_estimator(self) -> Estimator:
        """The gradient estimator that these settings describe."""
        return Estimator.preset(self.estimator, self.neumann_steps, self.replay_from, self.loops_recorded)

    def _refuse_biased_sampling(self) -> None:
        neutral: dict[str, tuple[Any, ...]] = {
            "top_p": (1.0,),
            "top_k": (0, -1),
            "min_p": (None, 0.0),
            "repetition_penalty": (1.0,),
            "generation_kwargs": (None, {}),
            "vllm_structured_outputs_regex": (None,),
        }
        for name, values in neutral.items():
            if getattr(self, name) not in values:
                raise UserError(
                    f"{name} = {getattr(self, name)!r} changes the sampling distribution, but the trainer scores the "
                    f"unchanged one, so the policy ratio would be biased: leave {name} at {values[0]!r}"
                )
        if self.temperature <= 0:
            raise UserError(f"temperature must be above 0 for sampling, got {self.temperature}")
        if not self.use_vllm or self.vllm_mode != "colocate":
            raise UserError("looprl samples with vLLM inside the trainer: use_vllm true and vllm_mode colocate")
        if self.num_loops is not None and self.num_loops < 1:
            raise UserError(f"num_loops must be at least 1, got {self.num_loops}")
