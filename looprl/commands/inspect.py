"""looprl inspect MODEL: the fixed-point health of a looped model, and what is safe to do with it."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from looprl.data.documents import Documents, batches_of, load_documents
from looprl.data.tokenizer import load_tokenizer
from looprl.errors import UserError
from looprl.measure.inspect_report import fidelity_cells, loop_cells, recipe_line, write_inspection_report
from looprl.measure.inspection import Inspection, inspect_model
from looprl.measure.verdict import Verdict, judge
from looprl.models import LoopedForCausalLM, load_model
from looprl.recipe import parse_options
from looprl.rollout.record import KVPolicy
from looprl.runs import RunFolder
from looprl.shipped import with_shipped

LEAST_LOOPS_SHOWN = 8
ABOUT = (
    "MODEL is a folder or hub name of a looped model with its tokenizer. It is measured on given text: how far each "
    "loop still moves the states, at which depth tokens converge, the spectral radius of the loop's Jacobian, the "
    "likelihood by number of loops and under both K/V policies, and how faithful the gradient of a replayed loop is. "
    "A verdict says whether terminal KV sharing and reuse are safe, from which state and with which neumann_steps."
)


@dataclass
class InspectOptions:
    """On what text, how deep, and where the results go."""

    text: str | None = field(
        default=None,
        metadata={
            "help": "A text file (blank lines separate documents; without one each line is one), or .jsonl, .json, "
            ".csv, .parquet with a column text, or prompt and answer. By default worked answers of the arithmetic task."
        },
    )
    task_options: dict | None = field(default=None, metadata={"help": "Knobs of the arithmetic task."})
    documents: int = field(default=32, metadata={"help": "Read the first N documents."})
    max_tokens: int = field(default=128, metadata={"help": "Cut documents after N tokens."})
    num_loops: int | None = field(
        default=None, metadata={"help": "R, the number of loops that is judged; by default the model's."}
    )
    most_loops: int | None = field(
        default=None, metadata={"help": "Look at loops 1 to N; by default twice R, and 8 at least."}
    )
    most_neumann_steps: int = field(default=8, metadata={"help": "Compare gradients for K = 0 to N."})
    kv_policy: KVPolicy | None = field(
        default=None, metadata={"help": "K/V policy whose states are reused; by default the model's."}
    )
    batch_size: int = field(default=8, metadata={"help": "Documents at once."})
    device: str = field(default="cpu", metadata={"help": "cpu or cuda."})
    seed: int = field(default=0, metadata={"help": "Of the drawn text, advantages and start vectors."})
    output_dir: str | None = field(
        default=None, metadata={"help": "Run folder; by default runs/inspect-NAME, from the last two parts of MODEL."}
    )
    overwrite: bool = field(default=False, metadata={"help": "Replace an existing run folder."})

    def __post_init__(self) -> None:
        for name, least in (("documents", 1), ("max_tokens", 2), ("most_neumann_steps", 0), ("batch_size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("num_loops", "most_loops"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.num_loops and self.most_loops and self.most_loops < self.num_loops:
            raise ValueError(f"most_loops ({self.most_loops}) must be at least num_loops ({self.num_loops})")
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"device is {self.device!r}; choose cpu or cuda")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device is cuda, but torch sees no CUDA device")
        if self.task_options and self.text is not None:
            raise ValueError("task_options are knobs of the built-in text; a file given with --text has none")


def run(argv: list[str]) -> int:
    """Measure, print tables and verdict, and leave JSON, figure and report in the run folder."""
    logging.disable_progress_bar()  # of loading weights
    name, options = parse_options(InspectOptions, argv, "looprl inspect", "MODEL", ABOUT)
    parts = [part for part in Path(name).resolve().parts if part != "checkpoints"]
    output_dir = options.output_dir or f"runs/inspect-{'-'.join(parts[-2:])}"
    RunFolder.check(output_dir, overwrite=options.overwrite)
    path = with_shipped(name)
    model = load_model(path, dtype=torch.float32).eval().to(options.device)
    num_loops = options.num_loops or model.config.num_loops
    most_loops = options.most_loops or max(2 * num_loops, LEAST_LOOPS_SHOWN)
    if most_loops < num_loops:
        raise UserError(f"most_loops ({most_loops}) must be at least the model's num_loops ({num_loops})")
    tokenizer = load_tokenizer(path)
    max_tokens = min(options.max_tokens, model.config.max_position_embeddings)
    text = load_documents(options.text, tokenizer, options.documents, max_tokens, options.seed, options.task_options)
    _check_vocabulary(text, tokenizer, model)
    folder = RunFolder.create(output_dir, overwrite=options.overwrite)
    resolved = {"kv_policy": options.kv_policy or model.config.kv_policy, "num_loops": num_loops}
    settings = {"command": "inspect", "model": name, **asdict(options), **resolved, "most_loops": most_loops}
    folder.write_config(settings)

    console = Console()
    pad = 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    batches = [batch.to(options.device) for batch in batches_of(text.documents, options.batch_size, pad)]
    with console.status("") as status:
        inspection = inspect_model(
            model, batches, num_loops, most_loops, options.most_neumann_steps, resolved["kv_policy"], options.seed,
            on_progress=lambda what: status.update(f"measuring {what}"),
        )  # fmt: skip
    verdict, remarks = judge(inspection), _remarks(text, max_tokens)
    report = write_inspection_report(folder, inspection, verdict, remarks, settings)
    _print(console, inspection, verdict, remarks)
    console.print(Text(f"report: {report}"), soft_wrap=True)
    return 0


def _print(console: Console, inspection: Inspection, verdict: Verdict, remarks: list[str]) -> None:
    for remark in remarks:
        console.print(Text(remark))
    for cells in (loop_cells(inspection), fidelity_cells(inspection)):
        console.print(cells.as_text())
    for finding in verdict.findings:
        console.print(Text(f"\n{finding.question}", style="bold"))
        console.print(Text(finding.answer))
    console.print(Text(f"\nTrain with {recipe_line(verdict)}"))


def _check_vocabulary(text: Documents, tokenizer: PreTrainedTokenizerBase, model: LoopedForCausalLM) -> None:
    largest = max(max(document.token_ids) for document in text.documents)
    if largest >= model.config.vocab_size:
        raise UserError(
            f"the tokenizer does not fit the model: the text has token id {largest} "
            f"({tokenizer.convert_ids_to_tokens(largest)!r}), the model's vocabulary {model.config.vocab_size} tokens"
        )


def _remarks(text: Documents, max_tokens: int) -> list[str]:
    tokens = sum(len(document.token_ids) for document in text.documents)
    remarks = [f"Text: {len(text.documents)} documents of {text.source}, {tokens} tokens."]
    if text.cut:
        remarks.append(f"{text.cut} of them are longer than {max_tokens} tokens and were cut there.")
    if text.too_short:
        remarks.append(f"{text.too_short} documents of a single token were left out.")
    return remarks
