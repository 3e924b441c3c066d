"""Which settings may differ between a run and its continuation."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from looprl.errors import UserError
from looprl.runs import CONFIG_FILE, installed_versions, plain

# They decide how long the run goes on, where it is reported and what is kept of it, never what a step does.
HARMLESS = frozenset(
    {
        *("output_dir", "overwrite", "resume", "max_steps", "num_train_epochs", "max_nonfinite_updates"),
        *("logging_steps", "logging_strategy", "logging_first_step", "log_level", "log_completions", "disable_tqdm"),
        *("num_completions_to_print", "log_unique_prompts", "report_to", "run_name", "project", "trackio_space_id"),
        *("save_strategy", "save_steps", "save_total_limit", "save_only_model", "eval_every", "control_every"),
        *("hub_token", "push_to_hub", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push"),
        *("vllm_gpu_memory_utilization", "rollout_timeout", "dataloader_num_workers", "local_rank", "ddp_timeout"),
        "num_processes",  # looprl's launcher alone is told it; how many there are is the checkpoint's to say
    }
)
_STEADY_SCHEDULES = ("constant", "constant_with_warmup")

_logger = logging.getLogger(__name__)


def check_same_settings(run_folder: Path, settings: Mapping[str, Any]) -> None:
    """Compare the settings of a continuation with those in the run's `config.yaml`.

    Other package versions, and more steps under a learning rate that depends on how many there are, give a warning.

    Raises:
        UserError: names each setting that differs and would make the continuation another run.
    """
    before = yaml.safe_load((run_folder / CONFIG_FILE).read_text(encoding="utf-8"))
    versions = before.pop("versions", {})
    now = plain(settings)
    differing = [key for key in sorted({*before, *now} - HARMLESS) if before.get(key) != now.get(key)]
    if "zero_stage" in differing:  # which these follow from
        differing = [key for key in differing if key not in ("deepspeed", "use_cpu")]
    if differing:
        changes = ", ".join(f"{key} (was {before.get(key)!r}, is {now.get(key)!r})" for key in differing)
        raise UserError(
            f"--resume continues {run_folder} as it was, but these settings have changed: {changes}. Give them as they "
            "were, or start a new run from the model that `looprl export` makes of this one"
        )
    lengthened = before.get("max_steps") != now.get("max_steps")
    if lengthened and str(now.get("lr_scheduler_type")) not in _STEADY_SCHEDULES:
        _logger.warning("max_steps has changed, and with it the learning rates of %s", now.get("lr_scheduler_type"))
    changed = {
        name: version for name, version in installed_versions().items() if versions.get(name, version) != version
    }
    if changed:
        _logger.warning("the run was started with other versions of %s: it may not go on exactly", ", ".join(changed))
