"""Dr. GRPO for looped models: TRL's GRPOTrainer, with three things changed.

1. Rollouts come from looprl's engine, which keeps each token's recurrent state (`colocated_rollouts.py`).
2. Scoring replays a single loop from that state; its backward solves the adjoint (`looprl.gradients`).
3. With penultimate replay the sampler's log-probs are the old log-probs: there is no second scoring pass.

    looprl train recipes/quickstart.yaml
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

from looprl.errors import UserError
from looprl.measure.evaluate import EvalSet
from looprl.models import LoopedForCausalLM, ModelError, load_model
from looprl.models.contract import at_least_fp32
from looprl.rewards import checked
from looprl.rollout.engine import RolloutEngine, Sampling
from looprl.rollout.record import stack_states
from looprl.rollout.shared_engine import SharedEngine
from looprl.training.adjoint_log import AdjointLog
from looprl.training.advantages import zero_variance_groups
from looprl.training.colocated_rollouts import ColocatedRollouts
from looprl.training.config import LoopedGRPOConfig
from looprl.training.control import GradientControl, policy_batch
from looprl.training.distributed import check_processes
from looprl.training.faults import NonFiniteGuard
from looprl.training.held_memory import HeldMemory
from looprl.training.optimizer_time import OptimizerTime
from looprl.training.trl_seam import Batch, GRPOSeam
from looprl.training.window import window_of
from looprl.training.zero import keep_core_whole

CompletionsWriter = Callable[[str, list[dict[str, Any]]], object]


class LoopedGRPOTrainer(GRPOSeam):
    """TRL's GRPOTrainer for a looped model: same arguments and two more.

    `on_completions(name, rows)` is called for each rollout; `eval_sets` are what else `evaluate_now` will be given.
    """

    args: LoopedGRPOConfig
    vllm_generation: ColocatedRollouts

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: Callable[..., list[float | None]] | list[Callable[..., list[float | None]]],
        args: LoopedGRPOConfig,
        train_dataset: Dataset,
        eval_dataset: Dataset | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: list[TrainerCallback] | None = None,
        on_completions: CompletionsWriter | None = None,
        eval_sets: Sequence[EvalSet] = (),
        peft_config: Any = None,
        **trl_arguments: Any,
    ):
        """Load the model if it is a path, start the engine, check that every prompt fits.

        Raises ModelError on a model that is not looped, UserError on PEFT adapters, on prompts that do not fit the
        window, and when the trainer does not see every process that the launcher started.
        """
        if peft_config is not None or hasattr(model, "peft_config"):
            raise UserError(
                "PEFT adapters are not supported: the rollout engine syncs full weights. Merge the adapter first "
                "(merge_and_unload) and train the merged model"
            )
        check_processes(args.distributed_state)
        if isinstance(model, str):
            model = load_model(model, **(args.model_init_kwargs or {}))
        if not isinstance(model, LoopedForCausalLM):
            raise ModelError(f"{type(model).__name__} is not a looped model; load one with looprl.load_model")
        rewards = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        if processing_class is None:
            processing_class = AutoTokenizer.from_pretrained(model.name_or_path)
        self.num_loops = model.config.num_loops = args.num_loops or model.config.num_loops
        self.kv_policy = model.config.kv_policy = args.kv_policy or model.config.kv_policy
        self.on_completions = on_completions
        self._rollout_version = 0
        length = args.max_completion_length
        sampled = [("training", train_dataset, length)]
        sampled += [("evaluation", eval_dataset, length)] if eval_dataset is not None else []
        sampled += [(each.name, each.prompts, each.max_completion_length or length) for each in eval_sets]
        self.window = window_of(model.config, args, processing_class, sampled)
        if args.make_estimator().loops_recorded == 1:
            keep_core_whole(model)
        prompts_per_rollout = args.generation_batch_size // args.num_generations
        if len(train_dataset) < prompts_per_rollout:
            raise UserError(
                f"the training set has {len(train_dataset)} prompts, but a rollout takes {prompts_per_rollout} "
                f"({args.generation_batch_size} completions, {args.num_generations} each): lower "
                "per_device_train_batch_size, or give more rows"
            )
        super().__init__(
            model=model,
            reward_funcs=[checked(reward) for reward in rewards],
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            callbacks=callbacks,
            **trl_arguments,
        )
        self.nonfinite = NonFiniteGuard(self, args.max_nonfinite_updates)
        self.add_callback(self.nonfinite)
        self.add_callback(OptimizerTime(self.meter, deepspeed=lambda: self.deepspeed))
        self.add_callback(HeldMemory(self, self.meter))
        self.estimator = replace(args.make_estimator(), on_solved=AdjointLog(self.meter))
        self.control = GradientControl(args.control_every, self.estimator, self.num_loops, self.meter)

    @property
    def scores_rollouts(self) -> bool:
        return not self.args.replay_is_exact

    @property
    def engine(self) -> RolloutEngine:
        """The rollout engine, also for evaluation."""
        return self.vllm_generation.engine

    def in_any_process(self, here: bool) -> bool:
        """Whether something is true in this process or in one of the others; all of them must ask."""
        return bool(self.accelerator.reduce(torch.tensor(float(here), device=self.accelerator.device)) > 0)

    def sampling(self) -> Sampling:
        """How completions are drawn, in training and in evaluation."""
        return Sampling(self.max_completion_length, tuple(self.eos_token_ids), self.temperature)

    def make_rollouts(self, **trl_settings: Any) -> ColocatedRollouts:
        tokenizer = trl_settings["processing_class"]
        ranks = self.args.vllm_tensor_parallel_size
        start_engine = partial(
            RolloutEngine if ranks == 1 else partial(SharedEngine, ranks=ranks),
            self.model.config,
            num_loops=self.num_loops,
            state_kind=self.args.replay_from,
            kv_policy=self.kv_policy,
            max_model_len=self.window,
            max_num_seqs=trl_settings["max_num_seqs"],
            dtype=self.model.dtype,
            own_process=self.args.own_process_engine,
            seed=self.args.seed,
            timeout=self.args.rollout_timeout,
            gpu_memory_utilization=self.args.vllm_gpu_memory_utilization,
        )
        return ColocatedRollouts(
            start_engine,
            self.model,
            self.sampling(),
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            seed=self.args.seed,
            rank=self.accelerator.process_index,
            may_restart=self.accelerator.num_processes == 1,
            step=lambda: self.state.global_step,
            meter=self.meter,
        )

    def finish_rollout(self, batch: Batch, rewards: Tensor) -> Batch:
        """Add the states and the old log-probs; silence what must not teach."""
        records = self.vllm_generation.peek()
        self._rollout_version = self.state.global_step
        for record in records:
            record.check(
                state_kind=self.args.replay_from,
                num_loops=self.num_loops,
                kv_policy=self.kv_policy,
                policy_version=self._rollout_version,
                hidden_size=self.model.config.hidden_size,
            )
        if self.estimator.state_from == "rollout":
            shape = batch["prompt_ids"].shape[1], batch["completion_ids"].shape[1]
            batch["states"] = self._stacked_states(*shape, slice(None))
            self.meter.maximum("memory/states", batch["states"].nbytes)
        if self.args.replay_is_exact:
            batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
        self._silence(batch, rewards, torch.tensor([len(record.completion_ids) == 0 for record in records]))
        if self.on_completions is not None and self.accelerator.is_main_process:
            index = self.vllm_generation.index
            suffix = f"-{index}" if index else ""
            self.on_completions(f"step-{self.state.global_step:05d}{suffix}", self.logged_rollout())
        return batch

    def _silence(self, batch: Batch, rewards: Tensor, empty: Tensor) -> None:
        equal = zero_variance_groups(rewards, self.reward_weights.to(rewards.device), self.num_generations)
        count = len(batch["advantages"])
        ours = slice(self.accelerator.process_index * count, (self.accelerator.process_index + 1) * count)
        rewards, equal = rewards[ours], equal[ours]
        batch["advantages"] = batch["advantages"].masked_fill(equal, 0.0)
        batch["completion_mask"] = batch["completion_mask"] * ~empty.to(equal.device).unsqueeze(1)
        self.meter.count("dropped/unscorable", float(rewards.isnan().all(dim=1).sum()))
        self.meter.count("dropped/zero_variance_groups", float(equal.sum()) / self.num_generations)
        self.meter.count("dropped/empty_completions", float(empty.sum()))
        masked = (batch["completion_mask"].sum(dim=1) == 0).sum() - empty.sum()
        self.meter.count("dropped/truncated_completions", float(masked))
        if "importance_sampling_ratio" in batch:
            ratio = batch["importance_sampling_ratio"]
            limit = self.vllm_importance_sampling_clip_max
            kept = batch["completion_mask"].bool()
            self.meter.mean("replay/truncated_share", float((ratio[kept] >= limit).sum()), float(kept.sum()))

    def _stacked_states(self, prompt_length: int, completion_length: int, rows: slice) -> Tensor:
        states = stack_states(self.vllm_generation.peek()[rows], prompt_length, completion_length)
        return states.to(self.accelerator.device)

    def score(
        self, model: nn.Module, input_ids: Tensor, attention_mask: Tensor, rows: slice, completion_length: int
    ) -> tuple[Tensor, Tensor]:
        """Replay (or recompute) the loops and read out the completion tokens' log-probs and entropies."""
        batch = self.micro_batch
        state = None
        if self.estimator.state_from == "rollout":
            if batch is not None:
                state = batch["states"]
            else:
                state = self._stacked_states(input_ids.shape[1] - completion_length, completion_length, rows)
            state = state[:, :-1]  # the last token predicts nothing, so it is not fed
        output = model(
            input_ids[:, :-1],
            attention_mask[:, :-1],
            num_loops=self.num_loops,
            initial_state=state,
            loop_runner=self.estimator,
            logits_to_keep=completion_length,
        )
        logps = torch.log_softmax(at_least_fp32(output.logits) / self.temperature, dim=-1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self._entropy_bonus_enabled):
            entropies = -(logps.exp() * logps).sum(-1)
        targets = input_ids[:, -completion_length:, None]
        sampled = logps.gather(-1, targets).squeeze(-1)
        if batch is not None:
            # the last sampled token was never fed to the sampler, so it has no state
            fed = attention_mask[:, :-1].bool() & attention_mask[:, 1:].bool()
            self._measure(batch, sampled.detach(), output.state.detach(), state, fed)
        return sampled, entropies

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        self.nonfinite.see_loss(loss)
        return loss

    def forget_rollouts(self) -> None:
        super().forget_rollouts()
        self.vllm_generation.forget()

    def own_state(self) -> dict[str, Any]:
        return {"rollout_version": self._rollout_version, "nonfinite_in_a_row": self.nonfinite.in_a_row}

    def restore_own_state(self, state: dict[str, Any]) -> None:
        self._rollout_version, self.nonfinite.in_a_row = state["rollout_version"], state["nonfinite_in_a_row"]

    def before_loss(self, batch: Batch) -> None:
        if self.control.is_due(self.state.global_step):
            with self.accelerator.autocast():
                rollouts = policy_batch(batch, self.args.replay_from, self.temperature)
                self.control.run(self.accelerator.unwrap_model(self.model), rollouts, self.state.global_step)

    @torch.no_grad()
    def _measure(self, batch: Batch, logps: Tensor, after: Tensor, before: Tensor | None, fed: Tensor) -> None:
        staleness = self.state.global_step - self._rollout_version
        self.meter.maximum("replay/staleness", staleness)
        if self.estimator.neumann_steps == 0:
            self.meter.mean("replay/neumann_steps", 0, 1)
        kept = batch["completion_mask"].bool()
        if kept.any():
            gaps = (logps - batch["sampling_per_token_logps"])[kept].abs()
            self.meter.mean("replay/logprob_gap_mean", float(gaps.sum()), gaps.numel())
            self.meter.maximum("replay/logprob_gap_max", float(gaps.max()))
        if before is not None:
            moved = (after - before).norm(dim=-1)[fed] / after.norm(dim=-1)[fed]
            self.meter.mean("replay/residual", float(moved.sum()), moved.numel())
