"""Text to measure a model on: documents as token ids, each with a part that is given and a part that follows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from looprl.data.errors import DatasetError
from looprl.data.files import FILE_SUFFIXES, read_rows
from looprl.data.loading import load_task_dataset
from looprl.data.prompts import prompt_token_ids

BUILT_IN_TEXT = "arithmetic"
BUILT_IN_SPLIT = "demonstrations"
LEAST_TOKENS = 2  # one to read, one to predict
_Encoded = tuple[list[int], int | None]  # token ids, and how many of them are the prompt's, if there is one


@dataclass(frozen=True)
class Document:
    """Token ids, of which the first `prompt_length` (1 at least, all but one at most) are given."""

    token_ids: tuple[int, ...]
    prompt_length: int


@dataclass(frozen=True)
class Documents:
    """What was read from `source`, and what was not: how many documents were cut short, and left out as too short."""

    source: str
    documents: tuple[Document, ...]
    cut: int
    too_short: int


@dataclass(frozen=True)
class TokenBatch:
    """Documents aligned where their prompts end: prompts padded on the left, the rest on the right.

    input_ids, attention_mask: [B, T]. prompt_length: P, the first column that no prompt reaches.
    """

    input_ids: Tensor
    attention_mask: Tensor
    prompt_length: int

    @property
    def follows(self) -> Tensor:
        """[B, T - P], True for the real tokens after the prompts."""
        return self.attention_mask[:, self.prompt_length :].bool()

    def to(self, device: str) -> "TokenBatch":
        """The batch on another device."""
        return TokenBatch(self.input_ids.to(device), self.attention_mask.to(device), self.prompt_length)


def load_documents(
    source: str | None,
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    max_tokens: int,
    seed: int = 0,
    task_options: Mapping[str, Any] | None = None,
) -> Documents:
    """Read the first `count` documents of at most `max_tokens` tokens each; what is longer is cut there.

    source: a file, or None for worked answers of the built-in arithmetic task, drawn with `seed` and its
    `task_options`. A .jsonl, .json, .csv or .parquet file has a column `text`, or `prompt` (or `question`) with
    `answer`; in any other file blank lines separate documents, and without a blank line each line is one. Where there
    is no prompt, or the cut left nothing after it, the first half is given. Documents of a single token or of none are
    left out and counted.

    Raises:
        DatasetError: there is no such file, it cannot be read, or no document has two tokens.
    """
    if source is None:
        rows = load_task_dataset(BUILT_IN_TEXT, BUILT_IN_SPLIT, task_options, count, seed)
        encoded = _prompts_and_answers(rows, tokenizer, BUILT_IN_TEXT)
    else:
        encoded = _from_file(source, tokenizer, count)
    long_enough = [(ids, given) for ids, given in encoded if len(ids) >= LEAST_TOKENS]
    shown = source or f"{BUILT_IN_TEXT} ({BUILT_IN_SPLIT})"
    if not long_enough:
        raise DatasetError(f"{shown}: no document has {LEAST_TOKENS} tokens or more, so there is nothing to predict")
    documents = []
    for ids, given in long_enough:
        kept = ids[:max_tokens]
        documents.append(Document(tuple(kept), given if given and given < len(kept) else len(kept) // 2))
    cut = sum(len(ids) > max_tokens for ids, _ in long_enough)
    return Documents(shown, tuple(documents), cut, len(encoded) - len(long_enough))


def batches_of(documents: Sequence[Document], size: int, pad_token_id: int) -> Iterator[TokenBatch]:
    """Batches of `size` documents, the last one smaller where they do not divide."""
    for start in range(0, len(documents), size):
        chosen = documents[start : start + size]
        before = max(document.prompt_length for document in chosen)
        after = max(len(document.token_ids) - document.prompt_length for document in chosen)
        ids = torch.full((len(chosen), before + after), pad_token_id)
        mask = torch.zeros_like(ids)
        for row, document in enumerate(chosen):
            first = before - document.prompt_length
            columns = slice(first, first + len(document.token_ids))
            ids[row, columns] = torch.tensor(document.token_ids)
            mask[row, columns] = 1
        yield TokenBatch(ids, mask, before)


def _from_file(source: str, tokenizer: PreTrainedTokenizerBase, count: int) -> list[_Encoded]:
    path = Path(source)
    if not path.is_file():
        raise DatasetError(f"there is no file {source} in {Path.cwd()}")
    if path.suffix.lower() not in FILE_SUFFIXES:
        texts = _paragraphs(path)
    else:
        table = list(read_rows(path))
        if not any("text" in row for row in table):
            rows = load_task_dataset(source, "train")
            return _prompts_and_answers(rows.select(range(min(count, len(rows)))), tokenizer, source)
        texts = [row.get("text", "") for row in table]
        if not all(isinstance(text, str) for text in texts):
            raise DatasetError(f"{source}: column 'text' holds something that is not a string")
    return [(ids, None) for ids in tokenizer(texts[:count], verbose=False)["input_ids"]] if texts else []


def _paragraphs(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path} cannot be read as text: {error}") from error
    lines = [line.rstrip() for line in text.strip().split("\n")]
    if "" in lines:
        return [part.strip("\n") for part in "\n".join(lines).split("\n\n") if part.strip()]
    return [line for line in lines if line]


def _prompts_and_answers(rows: Dataset, tokenizer: PreTrainedTokenizerBase, source: str) -> list[_Encoded]:
    if "answer" not in rows.column_names:
        raise DatasetError(
            f"{source}: a column 'answer' (or 'text') is needed; the columns are {', '.join(rows.column_names)}"
        )
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    prompts = prompt_token_ids(rows["prompt"][:], tokenizer)
    answers = tokenizer([str(answer) for answer in rows["answer"]], add_special_tokens=False, verbose=False)
    return [(prompt + answer + end, len(prompt)) for prompt, answer in zip(prompts, answers["input_ids"], strict=True)]
