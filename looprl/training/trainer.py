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
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

from looprl.data.tokenizer import load_tokenizer
from looprl.errors import UserError
from looprl.gradients import token_log_probs
from looprl.measure.evaluate import EvalSet
from looprl.models import LoopedForCausalLM, ModelError, load_model
from looprl.models.initial_state import check_drawable, drawn_initial_state
from looprl.rewards import checked
from looprl.rollout.engine import RolloutEngine
from looprl.rollout.random_state import initial_state_seed
from looprl.rollout.record import stack_states
from looprl.rollout.sampling import Sampling
from looprl.rollout.shared_engine import SharedEngine
from looprl.training.adjoint_log import AdjointLog
from looprl.training.advantages import zero_variance_groups
from looprl.training.colocated_rollouts import ColocatedRollouts
from looprl.training.config import LoopedGRPOConfig
from looprl.training.control import GradientControl, policy_batch, seed_of
from looprl.training.distributed import check_processes
from looprl.training.faults import NonFiniteGuard, seen_in_gradients
from looprl.training.held_memory import HeldMemory
from looprl.training.optimizer_time import OptimizerTime
from looprl.training.replay_log import log_logprob_gaps, log_residual, log_truncated_ratios
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
            processing_class = load_tokenizer(model.name_or_path)
        self.num_loops = model.config.num_loops = args.num_loops or model.config.num_loops
        self.kv_policy = model.config.kv_policy = args.kv_policy or model.config.kv_policy
        if args.initial_state == "drawn":
            check_drawable(model.config)
        self.on_completions = on_completions
        self._rollout_version = 0
        length = args.max_completion_length
        sampled = [("training", train_dataset, length)]
        sampled += [("evaluation", eval_dataset, length)] if eval_dataset is not None else []
        sampled += [(each.name, each.prompts, each.max_completion_length or length) for each in eval_sets]
        self.window = window_of(model.config, args, processing_class, sampled)
        args.check_family(type(model))
        estimator = args.make_estimator()
        if estimator.loops_recorded == 1:
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
        self.estimator = replace(estimator, on_solved=AdjointLog(self.meter))
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
            initial_state=self.args.initial_state,
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
            any_process=self.in_any_process,
            may_restart=ranks == 1,
            step=lambda: self.state.global_step,
            meter=self.meter,
        )

    def finish_rollout(self, batch: Batch, rewards: Tensor) -> Batch:
        """Add the states and the old log-probs; silence what must not teach."""
        records = self.vllm_generation.peek()
        self._rollout_version = self.state.global_step
        drawn = self.args.initial_state == "drawn"
        seed = initial_state_seed(self.args.seed, self._rollout_version) if drawn else None
        for record in records:
            record.check(
                state_kind=self.args.replay_from,
                num_loops=self.num_loops,
                kv_policy=self.kv_policy,
                policy_version=self._rollout_version,
                hidden_size=self.model.config.hidden_size,
                initial_state_seed=seed,
            )
        if seed is not None:
            batch["initial_state_seed"] = torch.tensor(seed)
        if self.estimator.state_from == "rollout":
            shape = batch["prompt_ids"].shape[1], batch["completion_ids"].shape[1]
            batch["states"] = self._stacked_states(*shape, slice(None))
            self.meter.maximum("memory/states", batch["states"].nbytes)
        if self.args.replay_is_exact:
            batch["old_per_token_logps"] = batch["sampling_per_token_logps"]
        elif self.estimator.loop_weights is not None:
            del batch["old_per_token_logps"]  # the policy's, to correct with; the loss has the weighted ones
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
            limit, kept = self.vllm_importance_sampling_clip_max, batch["completion_mask"].bool()
            log_truncated_ratios(self.meter, batch["importance_sampling_ratio"], limit, kept)

    def _stacked_states(self, prompt_length: int, completion_length: int, rows: slice) -> Tensor:
        states = stack_states(self.vllm_generation.peek()[rows], prompt_length, completion_length)
        return states.to(self.accelerator.device)

    def score(
        self, model: nn.Module, input_ids: Tensor, attention_mask: Tensor, rows: slice, completion_length: int
    ) -> tuple[Tensor, Tensor]:
        """Replay (or recompute) the loops and read out the completion tokens' log-probs and entropies.

        While a rollout is completed they are the policy's, to compare with the sampler's, whatever the loss will have.
        """
        batch = self.micro_batch
        estimator = self.estimator if batch is not None else replace(self.estimator, loop_weights=None)
        ids, mask = input_ids[:, :-1], attention_mask[:, :-1]  # the last token predicts nothing, so it is not fed
        state: Tensor | None
        if self.estimator.state_from == "rollout":
            if batch is not None:
                state = batch["states"][:, :-1]
            else:
                prompt_length = input_ids.shape[1] - completion_length
                state = self._stacked_states(prompt_length, completion_length, rows)[:, :-1]
        else:
            seed = self.vllm_generation.peek()[0].initial_state_seed if batch is None else seed_of(batch)
            state = drawn_initial_state(self.model.config, seed, ids, mask)
        output = model(
            ids,
            mask,
            num_loops=self.num_loops,
            initial_state=state,
            loop_runner=estimator,
            logits_to_keep=completion_length,
        )
        logps = token_log_probs(output, input_ids[:, -completion_length:], self.temperature, estimator.loop_weights)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self._entropy_bonus_enabled):
            entropies = logps.entropies
        if batch is not None:
            self.meter.maximum("replay/staleness", self.state.global_step - self._rollout_version)
            if estimator.neumann_steps == 0:
                self.meter.mean("replay/neumann_steps", 0, 1)
            kept = batch["completion_mask"].bool()
            log_logprob_gaps(self.meter, logps.sampled, batch["sampling_per_token_logps"], kept)
            if estimator.state_from == "rollout":
                assert state is not None
                # the last sampled token was never fed to the sampler, so it has no state
                log_residual(self.meter, state, output.state, mask.bool() & attention_mask[:, 1:].bool())
        return logps.objective, entropies

    def finish_loss(self, loss: Tensor) -> Tensor:
        return seen_in_gradients(loss)

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
