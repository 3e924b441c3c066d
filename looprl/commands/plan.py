"""looprl plan RECIPE: the memory that training by a recipe needs, before anything is loaded."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import torch
from rich.console import Console
from rich.text import Text
from transformers import PretrainedConfig

from looprl.data.tokenizer import load_tokenizer
from looprl.errors import UserError
from looprl.gradients import Estimator
from looprl.measure.activations import WeightlessModel
from looprl.measure.memory_plan import FP32, Held, Layout, Rollouts, rollout_memory, training_state
from looprl.measure.plan_report import Plan, headline, held_cells, recorded_cells, shown_bytes, token_cells
from looprl.models.initial_state import check_drawable
from looprl.models.registry import FAMILIES, read_outline
from looprl.recipe import parse_recipe
from looprl.rollout.record import KVPolicy
from looprl.rollout.token_bytes import kv_bytes_per_token, state_bytes_per_token
from looprl.runs import write_atomically
from looprl.shipped import with_shipped
from looprl.training.plan_config import PlanConfig
from looprl.training.train_recipe import TrainRecipe, load_task
from looprl.training.window import window_of


def run(argv: list[str]) -> int:
    """Print what a process keeps, what a token takes, and what the estimators record."""
    recipe, args = parse_recipe((TrainRecipe, PlanConfig), argv, "looprl plan")
    plan = make_plan(recipe, args)
    console = Console()
    for line in headline(plan):
        console.print(Text(line), soft_wrap=True)
    for cells in (held_cells(plan), token_cells(plan), recorded_cells(plan)):
        console.print(cells.as_text())
    for remark in plan.remarks:
        console.print(Text(f"\n{remark}"), soft_wrap=True)
    if args.json:
        try:
            Path(args.json).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(Path(args.json), json.dumps(plan.content(), indent=1) + "\n")
        except OSError as error:
            raise UserError(f"json: {args.json} cannot be written: {error}") from error
    return 0


def make_plan(recipe: TrainRecipe, args: PlanConfig) -> Plan:
    """Count and multiply. UserError without a model, ModelError where its configuration cannot be read."""
    if recipe.model is None:
        raise UserError("model is needed: name a recipe that has one, or give --model")
    config, stored, weights_seen = read_outline(with_shipped(recipe.model), **(args.model_init_kwargs or {}))
    if args.initial_state == "drawn":
        check_drawable(config)
    args.check_family(FAMILIES[config.model_type])
    dtype = args.asked_dtype or stored
    stage, offload = args.sharding
    computing = torch.bfloat16 if stage and args.bf16 else dtype
    model = WeightlessModel(config, computing)
    num_loops: int = args.num_loops or config.num_loops
    kv_policy: KVPolicy = args.kv_policy or config.kv_policy
    window, remarks = _window(recipe, args, config)
    completions = args.per_device_train_batch_size * args.steps_per_generation
    kv = {str(policy): kv_bytes_per_token(config, num_loops, policy, dtype) for policy in get_args(KVPolicy)}
    recorded = _recorded(model, args, num_loops, window)
    layout = Layout(model.parameters, computing.itemsize, stage, args.world_size, offload, fp32_gradients=not args.bf16)
    held = training_state(layout)
    if args.estimator in recorded:
        held.append(Held(f"activations of a micro-batch, {args.estimator}", recorded[args.estimator]))
    tied_head = config.num_embeddings * config.hidden_size if config.tie_word_embeddings else 0
    rollouts = Rollouts(
        completions=completions,
        window=window,
        kv_per_token=kv[kv_policy],
        state_per_token=state_bytes_per_token(config, dtype),
        replayed=args.make_estimator().state_from == "rollout",
        engine_parameters=model.parameters + tied_head,
        itemsize=dtype.itemsize,
        ranks=args.vllm_tensor_parallel_size,
    )
    return Plan(
        model=recipe.model,
        parameters=model.parameters,
        weights=_name(dtype),
        computes_in="bfloat16" if args.bf16 else _name(dtype),
        num_loops=num_loops,
        kv_policy=kv_policy,
        processes=args.world_size,
        zero_stage=stage,
        window=window,
        completions=completions,
        micro_batch=args.per_device_train_batch_size,
        kv_per_token=kv,
        state_per_token=rollouts.state_per_token,
        recorded=recorded,
        held=held + rollout_memory(rollouts),
        remarks=[*remarks, *_remarks(args, model, weights_seen)],
    )


def _recorded(model: WeightlessModel, args: PlanConfig, num_loops: int, window: int) -> dict[str, int]:
    """Activations of a micro-batch by the recipe's estimator and by full BPTT; none of checkpointed loops."""
    estimators: dict[str, Estimator] = {args.estimator: args.make_estimator(), "full": Estimator.preset("full")}
    autocast = bool(args.bf16) and not args.sharding[0]
    fed = window - 1
    shape = args.per_device_train_batch_size, fed, min(args.max_completion_length, fed)
    return {
        name: model.recorded_bytes(estimator, num_loops, *shape, autocast=autocast)
        for name, estimator in estimators.items()
        if not estimator.checkpoint_loops
    }


def _window(recipe: TrainRecipe, args: PlanConfig, config: PretrainedConfig) -> tuple[int, list[str]]:
    """The window that training would have, and what there is to say about it."""
    longest, completion = config.max_position_embeddings, args.max_completion_length
    if args.vllm_max_model_length:
        if not completion < args.vllm_max_model_length <= longest:
            raise UserError(
                f"vllm_max_model_length is {args.vllm_max_model_length}: it must have room for a prompt and "
                f"{completion} tokens of completion, and the model has {longest} positions"
            )
        return args.vllm_max_model_length, []
    if args.prompt_length:
        return min(args.prompt_length + completion, longest), []
    try:
        tokenizer = load_tokenizer(with_shipped(str(recipe.model)))
    except UserError as error:
        return longest, [
            f"The prompts could not be measured, so every sequence is taken to fill the model's {longest} positions; "
            f"with --prompt_length N they need not be. ({error})"
        ]
    try:
        task = load_task(recipe, args.seed)
    except UserError as error:
        raise UserError(f"{error}; with --prompt_length N the prompts need not be read") from error
    sampled = [("training", task.train_set, completion)]
    sampled += [(each.name, each.prompts, each.max_completion_length or completion) for each in task.eval_sets.values()]
    return window_of(config, args, tokenizer, sampled), []


def _remarks(args: PlanConfig, model: WeightlessModel, weights_seen: bool) -> Iterator[str]:
    stage, offload = args.sharding
    if not (args.precision_is_asked or torch.cuda.is_available()):
        yield "On a GPU training is in bf16 unless the recipe says otherwise: plan for that with --bf16 true."
    yield (
        "Not counted: buffers of DeepSpeed, the allocator and CUDA, and what an operation takes while it runs. On a "
        f"GPU the engine claims {args.vllm_gpu_memory_utilization:.0%} of the device for its weights and its cache."
    )
    if stage == 3:
        core = sum(parameter.numel() for parameter in model.model.model.core.parameters())
        itemsize = model.model.dtype.itemsize
        yield (
            f"ZeRO-3 also gathers the core while it computes ({shown_bytes(core * itemsize)})"
            + (
                f", and all weights for an engine in its own process ({shown_bytes(model.parameters * itemsize)})."
                if args.own_process_engine
                else "."
            )
        )
    if stage and args.bf16 and not offload:
        share = FP32 * math.ceil(model.parameters / args.world_size)
        yield f"In the update DeepSpeed also casts a process's share of the gradients to fp32 ({shown_bytes(share)})."
    if args.offloads_weights:
        yield "The DeepSpeed file's offload_param is not counted: the weights are taken to stay on the device."
    if args.estimator == "full_checkpointed":
        yield "Activations of full_checkpointed are not counted: about the states of R loops and one loop's own."
    if args.gradient_checkpointing:
        yield "Activations are counted without gradient_checkpointing, which keeps less of prelude and coda."
    if args.optim not in ("adamw_torch", "adamw_torch_fused"):
        yield f"The optimizer is counted as AdamW; the recipe's is {args.optim}."
    if not weights_seen:
        yield "There are no safetensors files at hand: what only they tell is the configuration's default."


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
