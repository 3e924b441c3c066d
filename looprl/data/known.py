"""The public datasets that looprl knows, by their columns: how their rows become prompts and what else they need."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from looprl.data import gsm8k, math500, mbppplus
from looprl.data.errors import DatasetError
from looprl.suggest import did_you_mean

Row = Mapping[str, Any]


@dataclass(frozen=True)
class KnownDataset:
    """What a dataset module offers.

    `schemas`: the column names that a row has, one tuple per public layout. `templates`: a prompt, text or chat
    messages, from a row. `convert`: what takes the place of a schema's columns, where their reward needs something
    else. `hub_options`: what `datasets.load_dataset` needs beside the name.
    """

    name: str
    hub_name: str
    schemas: Sequence[Sequence[str]]
    templates: Mapping[str, Callable[[Row], Any]]
    convert: Callable[[Row], dict[str, Any]] | None = None
    hub_options: Mapping[str, Any] = field(default_factory=dict)


KNOWN = (
    KnownDataset("GSM8K", gsm8k.HUB_NAME, [gsm8k.COLUMNS], gsm8k.TEMPLATES, hub_options=gsm8k.HUB_OPTIONS),
    KnownDataset("MATH-500", math500.HUB_NAME, [math500.COLUMNS], math500.TEMPLATES),
    KnownDataset(
        "MBPP+",
        mbppplus.HUB_NAME,
        [mbppplus.EVALPLUS_COLUMNS, mbppplus.HUB_COLUMNS],
        mbppplus.TEMPLATES,
        mbppplus.convert,
    ),
)


def hub_options(hub_name: str) -> dict[str, Any]:
    """Return the arguments that a known dataset needs from the hub; those of an unknown one are the user's."""
    return next((dict(known.hub_options) for known in KNOWN if known.hub_name == hub_name), {})


def recognise(columns: Sequence[str]) -> KnownDataset | None:
    """Return the known dataset whose columns are all there."""
    return next((known for known in KNOWN if any(set(schema) <= set(columns) for schema in known.schemas)), None)


def with_prompts(rows: Sequence[Row], known: KnownDataset, template: str | None, source: str) -> list[dict[str, Any]]:
    """Return rows with what their reward needs and the prompts of `template`; without one they stay as they are.

    A dataset that is converted has the template `plain` by default.

    Raises:
        DatasetError: an unknown template, or a malformed row.
    """
    if known.convert is not None:
        replaced = {column for schema in known.schemas for column in schema}
        others = [{name: value for name, value in row.items() if name not in replaced} for row in rows]
        rows = [{**other, **known.convert(row)} for other, row in zip(others, rows, strict=True)]
        template = template or "plain"
    if template is None:
        return [dict(row) for row in rows]
    if template not in known.templates:
        raise DatasetError(
            f"{source}: there is no template {template!r}; those of {known.name} are {', '.join(known.templates)}."
            + did_you_mean(str(template), known.templates)
        )
    return [{**row, "prompt": known.templates[template](row)} for row in rows]
