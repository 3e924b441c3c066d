"""Text to measure on: which documents, where their prompts end, and how they are padded."""

import json

import pytest
import torch

from looprl.data.arithmetic import ArithmeticTask, demonstrations
from looprl.data.documents import Document, batches_of, load_documents
from looprl.data.errors import DatasetError
from looprl.data.tokenizer import build_tokenizer

TOKENIZER = build_tokenizer()


@pytest.fixture
def load(tmp_path):
    def from_file(name, content, count=10, max_tokens=100):
        (tmp_path / name).write_text(content)
        return load_documents(str(tmp_path / name), TOKENIZER, count, max_tokens)

    return from_file


def texts(documents):
    return [TOKENIZER.decode(document.token_ids, skip_special_tokens=True) for document in documents.documents]


def test_the_built_in_text_is_worked_answers_with_their_questions_as_prompts():
    found = load_documents(None, TOKENIZER, 3, 100, seed=5, task_options={"num_steps": 1})
    rows = demonstrations(ArithmeticTask(num_steps=1), 3, 5)
    for document, row in zip(found.documents, rows, strict=True):
        assert document.token_ids[0] == TOKENIZER.bos_token_id and document.token_ids[-1] == TOKENIZER.eos_token_id
        prompt = document.token_ids[1 : document.prompt_length]
        assert TOKENIZER.decode(prompt) == row["question"] + "\n"
        assert TOKENIZER.decode(document.token_ids[document.prompt_length : -1]) == row["answer"]
    assert (found.cut, found.too_short) == (0, 0)


def test_blank_lines_separate_documents_and_without_one_lines_are(load):
    assert texts(load("a.txt", "\none\ntwo\n\n\nthree\n")) == ["one\ntwo", "three"]
    assert texts(load("b.md", "one\ntwo\nthree\n", count=2)) == ["one", "two"]


def test_plain_text_gives_its_first_half(load):
    (document,) = load("a.txt", "12 34 5").documents
    assert len(document.token_ids) == 6 and document.prompt_length == 3


@pytest.mark.parametrize(
    "row", [{"text": "1 + 1"}, {"prompt": "1 +", "answer": " 1"}, {"question": "1", "answer": "1"}]
)
def test_rows_hold_texts_or_prompts_with_answers(load, row):
    (document,) = load("rows.jsonl", json.dumps(row)).documents
    (text,) = texts(load("rows.jsonl", json.dumps(row)))
    if "text" in row:
        assert text == row["text"]
    else:
        prompt = row.get("prompt") or row["question"] + "\n"
        assert text == prompt + row["answer"]
        assert document.prompt_length == len(TOKENIZER(prompt)["input_ids"])
        assert document.token_ids[-1] == TOKENIZER.eos_token_id


def test_what_is_longer_is_cut_and_what_is_too_short_is_left_out_and_both_are_counted(load):
    long = {"prompt": "1 2 3 4 5 6 7 8 9", "answer": "1"}
    found = load("rows.jsonl", "\n".join(map(json.dumps, [long, {"prompt": "1", "answer": "2"}])), max_tokens=8)
    assert [(len(document.token_ids), document.prompt_length) for document in found.documents] == [(8, 4), (4, 2)]
    assert (found.cut, found.too_short) == (1, 0)
    rows = [{"text": ""}, {"text": "1 2 3"}, {"text": ""}]  # nothing but <bos>
    found = load("rows.jsonl", "\n".join(map(json.dumps, rows)))
    assert (len(found.documents), found.cut, found.too_short) == (1, 0, 2)


def test_batches_align_where_prompts_end():
    documents = [Document((1, 2, 3), 1), Document((4, 5, 6, 7), 3), Document((8, 9), 1)]
    first, second = batches_of(documents, 2, pad_token_id=0)
    assert first.prompt_length == 3 and second.prompt_length == 1
    assert first.input_ids.tolist() == [[0, 0, 1, 2, 3], [4, 5, 6, 7, 0]]
    assert first.attention_mask.tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert first.follows.tolist() == [[True, True], [True, False]]
    assert torch.equal(second.input_ids, torch.tensor([[8, 9]]))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.txt", " \n", "nothing to predict"),
        ("empty.jsonl", "", "is empty"),
        ("bos.jsonl", json.dumps({"text": ""}), "no document has 2 tokens"),
        ("rows.jsonl", json.dumps({"prompt": "1"}), r"rows\.jsonl: a column 'answer'"),
        ("rows.jsonl", json.dumps({"text": 3}), "not a string"),
    ],
)
def test_text_that_holds_nothing_to_measure_is_refused(load, name, content, words):
    with pytest.raises(DatasetError, match=words):
        load(name, content)


def test_a_missing_file_and_bytes_that_are_no_text_are_refused(tmp_path):
    with pytest.raises(DatasetError, match=r"no file nowhere\.txt"):
        load_documents("nowhere.txt", TOKENIZER, 1, 10)
    (tmp_path / "image.txt").write_bytes(b"\x89PNG\xff")
    with pytest.raises(DatasetError, match="cannot be read as text"):
        load_documents(str(tmp_path / "image.txt"), TOKENIZER, 1, 10)
