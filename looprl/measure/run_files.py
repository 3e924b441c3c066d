"""Reads a run folder back, whatever an interrupted run left of it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from looprl.errors import UserError
from looprl.runs import CONFIG_FILE, METRICS_FILE, SUMMARY_FILE, read_metrics


@dataclass(frozen=True)
class RunFiles:
    """What the files of a run folder hold; empty where one is missing, which `notes` then says."""

    name: str
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)


def read_run(folder: Path) -> RunFiles:
    """Read every file of a run folder that is there and whole."""
    notes: list[str] = []

    def read(name: str, parse: Callable[[Path], Any], empty: Any) -> Any:
        file = folder / name
        if not file.is_file():
            notes.append(f"{name} is missing.")
            return empty
        try:
            content = parse(file)
        except (UserError, ValueError, OSError, yaml.YAMLError) as error:
            notes.append(f"{name} cannot be read: {error}")
            return empty
        if not isinstance(content, type(empty)):
            notes.append(f"{name} does not hold what it should.")
            return empty
        return content

    return RunFiles(
        name=folder.resolve().name,
        config=read(CONFIG_FILE, lambda file: yaml.safe_load(file.read_text(encoding="utf-8")), {}),
        metrics=read(METRICS_FILE, read_metrics, []),
        summary=read(SUMMARY_FILE, lambda file: json.loads(file.read_text(encoding="utf-8")), {}),
        before=read("completions/eval-before.jsonl", read_metrics, []),
        after=read("completions/eval-after.jsonl", read_metrics, []),
        notes=notes,
    )
