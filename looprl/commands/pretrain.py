"""looprl pretrain RECIPE: train a looped model from scratch on worked answers."""

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import set_seed
from transformers.utils import logging

from looprl.data.loading import load_task_dataset
from looprl.data.tokenizer import build_tokenizer
from looprl.errors import UserError
from looprl.models import LoopLMConfig, LoopLMForCausalLM
from looprl.recipe import parse_recipe, recipe_name
from looprl.runs import RunFolder
from looprl.suggest import did_you_mean
from looprl.training.callbacks import MetricsToRunFolder, show_only_progress_line
from looprl.training.pretrain import LoopedPretrainConfig, LoopedPretrainer, weighted_tokens


@dataclass
class PretrainRecipe:
    """What is pretrained, and on what."""

    dataset: str = field(default="arithmetic", metadata={"help": "A built-in task, a file or a hub name."})
    split: str = field(default="demonstrations", metadata={"help": "Split of the dataset."})
    task_options: dict | None = field(default=None, metadata={"help": "Knobs of a built-in task."})
    dataset_size: int | None = field(default=None, metadata={"help": "How many rows."})
    model_config: dict | None = field(default=None, metadata={"help": "LoopLMConfig keys of the new model."})
    overwrite: bool = field(default=False, metadata={"help": "Replace an existing run folder."})


def run(argv: list[str]) -> int:
    """Pretrain, and leave weights and tokenizer in the run folder's `checkpoints/step-N`."""
    logging.disable_progress_bar()  # of loading and saving weights
    name = recipe_name(argv) or "pretrain"
    recipe, args = parse_recipe(
        (PretrainRecipe, LoopedPretrainConfig), argv, "looprl pretrain", defaults={"output_dir": f"runs/{name}"}
    )
    tokenizer = build_tokenizer()
    tokens = dict(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    config = _model_config(tokens | (recipe.model_config or {}))
    rows = load_task_dataset(recipe.dataset, recipe.split, recipe.task_options, recipe.dataset_size, args.seed)
    dataset = weighted_tokens(rows, tokenizer, args.prompt_weight, config.max_position_embeddings)
    folder = RunFolder.create(Path(args.output_dir), overwrite=recipe.overwrite)
    folder.write_config({"command": "pretrain", **vars(recipe), **args.to_dict()})
    set_seed(args.seed)
    model = LoopLMForCausalLM(config)
    print(f"{model.num_parameters():,} parameters, {len(dataset)} rows")
    trainer = LoopedPretrainer(model, args, dataset, tokenizer.pad_token_id, callbacks=[MetricsToRunFolder(folder)])
    show_only_progress_line(trainer)
    trainer.train()
    saved = folder.checkpoint_path(trainer.state.global_step)
    model.save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    print(f"model: {saved}")
    return 0


def _model_config(settings: dict[str, Any]) -> LoopLMConfig:
    known = [name for name in inspect.signature(LoopLMConfig.__init__).parameters if name not in ("self", "kwargs")]
    special_tokens = ("pad_token_id", "bos_token_id", "eos_token_id")
    for name in settings:
        if name not in (*known, *special_tokens):
            raise UserError(
                f"model_config has no key {name!r}.{did_you_mean(name, known)} Its keys: {', '.join(known)}"
            )
    try:
        return LoopLMConfig(**settings)
    except ValueError as error:
        raise UserError(f"model_config: {error}") from error
