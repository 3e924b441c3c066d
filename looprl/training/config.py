"""Settings of `LoopedGRPOTrainer`: TRL's `GRPOConfig` with looprl's keys and Dr. GRPO as the default."""

import math
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from transformers import SchedulerType
from trl import GRPOConfig

from looprl.errors import UserError
from looprl.gradients import AdjointSolver, Estimator, NeumannSteps
from looprl.gradients.adjoint import AdjointMethod
from looprl.gradients.estimator import Preset, ReplayFrom
from looprl.gradients.log_probs import LoopWeights
from looprl.models import LoopedForCausalLM
from looprl.models.initial_state import InitialState
from looprl.models.registry import check_exit_gate
from looprl.rollout.record import KVPolicy
from looprl.training.config_checks import refuse_biased_sampling, refuse_ratios, refuse_unsupported
from looprl.training.distributed import configured, join_processes, launched_processes
from looprl.training.zero import STAGES, zero_settings


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
    neumann_steps: NeumannSteps = field(
        default=4,
        metadata={
            "help": "Neumann steps K: J^T products after the replayed loop, or auto: as many as each sequence needs."
        },
    )
    adjoint_solver: AdjointMethod = field(
        default="neumann",
        metadata={"help": "What is made of the products: their sum, or the combination of least residual."},
    )
    neumann_tolerance: float = field(
        default=AdjointSolver.tolerance,
        metadata={"help": "With neumann_steps auto: how large the terms left out may be, relative to the adjoint."},
    )
    loops_recorded: int | None = field(default=None, metadata={"help": "Loops b that estimator 'truncated' records."})
    loop_weights: LoopWeights = field(
        default="uniform", metadata={"help": "How estimator 'rltt' weights the log-probs of the loops."}
    )
    kv_policy: KVPolicy | None = field(
        default=None, metadata={"help": "K/V sharing between loops in rollouts; by default the model's own."}
    )
    initial_state: InitialState = field(
        default="zero",
        metadata={"help": "Where the loops start: zero, or drawn from the family's distribution for each policy."},
    )
    control_every: int | None = field(
        default=None,
        metadata={"help": "Compare the gradient with full BPTT every N steps, on the step's first micro-batch."},
    )
    own_process_engine: bool = field(
        default=False,
        metadata={"help": "Run the rollout engine in its own process; rollouts then do not repeat exactly."},
    )
    max_staleness: int = field(
        default=0, metadata={"help": "Optimizer steps that a rollout may be behind the weights it updates."}
    )

    num_processes: int | None = field(
        default=None,
        metadata={
            "help": "Processes on this machine that train together, each with its own rollout engine; looprl starts "
            "them. Leave it out under another launcher."
        },
    )
    zero_stage: int | None = field(
        default=None,
        metadata={"help": "ZeRO stage of DeepSpeed, 1, 2 or 3; several processes need one.", "choices": STAGES},
    )
    offload_optimizer: bool = field(
        default=False, metadata={"help": "With zero_stage: keep the optimizer's state in the CPU's memory."}
    )

    deepspeed: dict | str | None = field(
        default=None, metadata={"help": "DeepSpeed's own settings, or a file of them, in the place of zero_stage."}
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
        default=False, metadata={"help": "Recompute the activations of prelude and coda in the backward pass."}
    )
    logging_steps: float = field(default=1, metadata={"help": "Log every N steps."})
    lr_scheduler_type: SchedulerType | str = field(
        default="constant_with_warmup", metadata={"help": "Learning-rate schedule."}
    )
    adam_beta2: float = field(default=0.99, metadata={"help": "AdamW beta2."})
    save_strategy: str = field(
        default="steps",
        metadata={"help": "Checkpoints to resume from: every save_steps and at the end; no: last weights only."},
    )
    save_total_limit: int | None = field(
        default=2, metadata={"help": "How many checkpoints are kept, the newest; null keeps all."}
    )
    max_nonfinite_updates: int = field(
        default=3,
        metadata={"help": "Updates in a row that may be skipped for a loss or gradient that is not finite."},
    )
    rollout_timeout: float = field(
        default=1800.0,
        metadata={"help": "Seconds after which an engine in its own process is taken for dead and replaced."},
    )
    report_to: str | list[str] | None = field(
        default="none", metadata={"help": "Trackers besides the run folder: tensorboard, wandb, ..."}
    )
    vllm_importance_sampling_correction: bool | None = field(
        default=None, metadata={"help": "Follows from estimator and replay_from: on unless the replay is exact."}
    )
    vllm_importance_sampling_mode: str = field(
        default="token_truncate", metadata={"help": "How endpoint replay corrects its mismatch."}
    )
    disable_tqdm: bool | None = field(default=True, metadata={"help": "TRL's own progress bar; looprl shows its own."})

    def __post_init__(self) -> None:
        if not torch.cuda.is_available():
            self.dataloader_pin_memory = False
        if self.bf16 is None:
            self.bf16 = torch.cuda.is_available() and not (self.use_cpu or self.fp16)
        refuse_biased_sampling(self)
        refuse_unsupported(self)
        self.vllm_importance_sampling_correction = not self.replay_is_exact
        self._join_processes()
        super().__post_init__()
        if self.world_size % self.vllm_tensor_parallel_size:
            raise UserError(
                f"vllm_tensor_parallel_size is {self.vllm_tensor_parallel_size}, but {self.world_size} processes "
                "cannot be divided into groups of that many that share an engine"
            )
        if self.vllm_tensor_parallel_size > 1 and self.own_process_engine:
            raise UserError("own_process_engine and vllm_tensor_parallel_size exclude each other")
        if self.control_every is not None and self.shards_weights:
            raise UserError("control_every needs whole weights, which ZeRO-3 holds in shards: use zero_stage 1 or 2")
        if self.make_estimator().loop_weights is not None:
            refuse_ratios(self)
        if self.staleness > self.max_staleness:
            raise UserError(
                f"num_iterations, steps_per_generation and gradient_accumulation_steps make updates that are up to "
                f"{self.staleness} steps behind their rollout: set max_staleness to {self.staleness}, or make one "
                "update per rollout"
            )

    @property
    def staleness(self) -> int:
        """How many optimizer steps the oldest micro-batch of an update is behind its rollout, at the most."""
        micro_batches = self.steps_per_generation * self.num_iterations  # of one rollout
        per_update = self.gradient_accumulation_steps
        return (per_update - math.gcd(micro_batches, per_update) + micro_batches - 1) // per_update

    @property
    def shards_weights(self) -> bool:
        """Whether no process has the weights as a whole, as under ZeRO-3."""
        return bool(self.deepspeed) and self.hf_deepspeed_config.is_zero3()

    @property
    def replay_is_exact(self) -> bool:
        """Whether the replay is the sampler's very last loop, so that sampler log-probs are the old log-probs."""
        return self.estimator == "reuse" and self.replay_from == "penultimate"

    def make_estimator(self) -> Estimator:
        """The gradient estimator that these settings describe."""
        return Estimator.preset(
            self.estimator,
            self.neumann_steps,
            self.replay_from,
            self.loops_recorded,
            self.adjoint_solver,
            self.neumann_tolerance,
            self.loop_weights,
        )

    def check_family(self, family: type[LoopedForCausalLM]) -> None:
        """ModelError where the estimator needs what models of this family do not have."""
        if self.make_estimator().loop_weights == "exit":
            check_exit_gate(family, "loop_weights exit, unlike uniform and progressive,")

    def _join_processes(self) -> None:
        """Become one of the launcher's processes, or without a launcher the only one."""
        launched = launched_processes()
        if self.num_processes not in (None, launched or 1):
            raise UserError(
                f"num_processes is {self.num_processes}, but the launcher started {launched or 1}: `looprl train` "
                "starts them itself; with another launcher leave num_processes out"
            )
        self.deepspeed = self._deepspeed_settings()
        if self.deepspeed is None:
            if launched not in (None, 1):
                raise UserError(f"the launcher started {launched} processes: set zero_stage to 1, 2 or 3")
            if not torch.cuda.is_available():
                self.use_cpu = True
            return
        if launched is None:
            raise UserError("ZeRO needs a launcher, even for one process: start with `looprl train` or torchrun")
        if self.bf16 and not torch.cuda.is_available():
            raise UserError(
                "bf16 under ZeRO needs a GPU: on CPUs leave it out, or load the weights in bf16 with "
                "model_init_kwargs: {dtype: bfloat16}"
            )
        engine_given_up = self.rollout_timeout if self.own_process_engine else 0.0  # others wait while one is replaced
        join_processes(timedelta(seconds=self.ddp_timeout + engine_given_up))
        self.accelerator_config = configured(self.accelerator_config)  # type: ignore[has-type]

    def stay_alone(self) -> None:
        """Forget about processes, for what is done in one of them, whatever the recipe trains in."""
        self.num_processes = self.zero_stage = self.deepspeed = None
        self.offload_optimizer = False

    def _deepspeed_settings(self) -> dict | str | None:
        """DeepSpeed's settings or a file of them, as given or as zero_stage says."""
        if self.zero_stage is None:
            if self.offload_optimizer:
                raise UserError("offload_optimizer needs zero_stage; a DeepSpeed file has a key of that name")
            return self.deepspeed
        settings = zero_settings(self.zero_stage, self.offload_optimizer)
        if self.deepspeed not in (None, settings):
            raise UserError("zero_stage and deepspeed exclude each other: give one of them")
        return settings
