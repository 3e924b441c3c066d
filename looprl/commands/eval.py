"""looprl eval RECIPE_OR_MODEL: avg@k, pass@k and majority@k on held-out prompts, at each number of loops.

The first argument is a recipe, or the folder of a model; with a folder, `--reward` says how to judge.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from looprl.data.checks import check_prompt_lengths
from looprl.data.prompts import prompt_token_ids
from looprl.data.tokenizer import load_tokenizer
from looprl.errors import UserError
from looprl.measure.eval_report import eval_cells, eval_notes, exit_cells, write_eval
from looprl.measure.eval_samples import EvalSamples
from looprl.measure.report import REPORT_FILE
from looprl.models import LoopedForCausalLM, load_model
from looprl.models.initial_state import check_drawable
from looprl.models.registry import check_exit_gate
from looprl.recipe import parse_recipe, recipe_name
from looprl.recipe_file import load_recipe
from looprl.rollout.engine import RolloutEngine
from looprl.rollout.sampling import Sampling
from looprl.runs import CONFIG_FILE, RunFolder, plain
from looprl.shipped import with_shipped
from looprl.training.eval_config import EvalConfig, EvalRecipe, Evaluated, load_evaluated

# What the completions depend on, beside the numbers of loops. The weights are compared, wherever they lie.
_DECISIVE = (
    "weights", "reward", "seed", "k", "batch_size", "temperature", "max_completion_length", "kv_policy",
    "initial_state", "dataset", "task_options", "eval_dataset", "eval_split", "eval_size", "transfer_dataset",
    "transfer_split", "exit_gate", "transfer_task_options", "transfer_size", "transfer_reward",
    "transfer_max_completion_length",
)  # fmt: skip


def run(argv: list[str]) -> int:
    """Sample what is not there yet, and leave eval.json, its figure and the report in the run folder."""
    logging.disable_progress_bar()  # of loading weights
    argv, name = _with_model_folder(argv)
    recipe, args = parse_recipe(
        (EvalRecipe, EvalConfig), argv, "looprl eval", defaults={"output_dir": f"runs/eval-{name}"}
    )
    folder = RunFolder.check(args.output_dir, recipe.overwrite, recipe.resume)
    evaluated = load_evaluated(recipe)
    path = with_shipped(recipe.model)
    model = load_model(path, **(args.model_init_kwargs or {}))
    if args.initial_state == "drawn":
        check_drawable(model.config)
    if args.exit_gate or args.exit_thresholds:
        check_exit_gate(type(model), "exit_gate" if args.exit_gate else "exit_thresholds")
    reads_gate = args.exit_gate is not False and not model.FAMILY.no_exit_gate
    tokenizer = load_tokenizer(path)
    window = _window(evaluated, tokenizer, args.max_completion_length, model.config.max_position_embeddings)
    plan = _plan(evaluated, args, model, tokenizer, reads_gate)
    settings = {"command": "eval", **vars(recipe), **args.to_dict(), "weights": _digest(model)}
    settings["exit_gate"] = reads_gate or None
    settings = {key: value for key, value in settings.items() if key not in ("resume", "overwrite")}
    if recipe.resume:
        _check_same(folder, settings)
    folder = RunFolder.create(args.output_dir, recipe.overwrite, recipe.resume)
    folder.write_config(settings)
    console = Console()
    _say(console, f"{recipe.model}, {args.k} completions per prompt; once stopped, --resume goes on in {folder.path}")
    problems: list[dict[str, Any]] = []
    engine: RolloutEngine | None = None
    with _progress(console) as progress:
        for samples in plan:
            done = samples.resume(folder)
            bar = progress.add_task(f"{samples.task}, {samples.depth}", total=samples.size, completed=done)
            if done < samples.size:
                if engine is None or (engine.num_loops, engine.exit_threshold) != samples.read_out:
                    engine = _engine(model, samples, window, args)
                for more in samples.draw(engine, tokenizer, folder, done):
                    progress.advance(bar, more)
            problems += samples.problem_rows(folder)
            rows = write_eval(folder.path, problems, args.k, settings)
    for cells in eval_cells(rows) + exit_cells(rows):
        console.print(cells.as_text())
    for note in eval_notes(rows):
        _say(console, note)
    _say(console, f"\nrun folder: {folder.path}\nreport: {folder.path / REPORT_FILE}")
    return 0


def _with_model_folder(argv: list[str]) -> tuple[list[str], str]:
    """Turn a model's folder as first argument into `--model`, and name what is evaluated."""
    first = argv[0] if argv and not argv[0].startswith("-") else None
    if first is not None and (Path(with_shipped(first)) / "config.json").is_file():
        return ["--model", first, *argv[1:]], Path(first).name
    return argv, recipe_name(argv) or "model"


def _window(
    evaluated: Sequence[Evaluated], tokenizer: PreTrainedTokenizerBase, max_completion_length: int, most: int
) -> int:
    """Tokens of the longest prompt and its completion; DatasetError where they are more than the model's `most`."""
    windows = []
    for each in evaluated:
        completion = each.eval_set.max_completion_length or max_completion_length
        lengths = [len(ids) for ids in prompt_token_ids(each.eval_set.prompts["prompt"][:], tokenizer)]
        check_prompt_lengths(lengths, most - completion, each.eval_set.name)
        windows.append(max(lengths) + completion)
    return max(windows)


def _plan(
    evaluated: Sequence[Evaluated],
    args: EvalConfig,
    model: LoopedForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    reads_gate: bool,
) -> list[EvalSamples]:
    """What is to be drawn: all sets of prompts at one number of loops, then at the next; at last with early exit."""
    most = model.config.num_loops
    loops = list(dict.fromkeys(args.num_loops or (range(1, most + 1) if args.exit_gate else [most])))
    depths: list[tuple[int, float | None]] = [(num_loops, None) for num_loops in loops]
    depths += [(max(loops), threshold) for threshold in dict.fromkeys(args.exit_thresholds or [])]
    declared = model.generation_config.eos_token_id
    stops = [tokenizer.eos_token_id, *(declared if isinstance(declared, list) else [declared])]
    stop_token_ids = tuple(dict.fromkeys(token for token in stops if token is not None))
    return [
        EvalSamples(
            name=each.name,
            task=each.task,
            eval_set=each.eval_set,
            num_loops=num_loops,
            k=args.k,
            batch_size=args.batch_size,
            sampling=Sampling(
                each.eval_set.max_completion_length or args.max_completion_length, stop_token_ids, args.temperature
            ),
            seed=args.seed,
            stream=stream,
            exit_gate=reads_gate,
            exit_threshold=exit_threshold,
        )
        for num_loops, exit_threshold in depths
        for stream, each in enumerate(evaluated)
    ]


def _engine(model: LoopedForCausalLM, samples: EvalSamples, window: int, args: EvalConfig) -> RolloutEngine:
    engine = RolloutEngine(
        model.config,
        num_loops=samples.num_loops,
        state_kind="gate" if samples.exit_gate else "penultimate",
        exit_threshold=samples.exit_threshold,
        kv_policy=args.kv_policy or model.config.kv_policy,
        initial_state=args.initial_state,
        max_model_len=window,
        max_num_seqs=args.batch_size,
        dtype=model.dtype,
        seed=args.seed,
        gpu_memory_utilization=args.vllm_gpu_memory_utilization,
    )
    engine.sync_weights(model.named_parameters(), policy_version=0)
    return engine


def _check_same(folder: RunFolder, settings: dict[str, Any]) -> None:
    """Make sure that what the folder holds was drawn as is asked for now; other numbers of loops are no difference."""
    stored = load_recipe(folder.path / CONFIG_FILE)
    for key in _DECISIVE:
        before, now = stored.get(key), plain(settings[key])
        if before != now:
            raise UserError(
                f"{folder.path} was evaluated with {key}: {before!r}, but this is {key}: {now!r}; give another "
                "--output_dir, or start anew with --overwrite"
            )


def _digest(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return f"sha256:{digest.hexdigest()}"


def _progress(console: Console) -> Progress:
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True)


def _say(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)
