"""Loading datasets: every source gives prompts, nothing is dropped, and errors say what to do."""

import csv
import json
from pathlib import Path

import datasets
import pytest

from looprl.data.arithmetic import is_held_out
from looprl.data.errors import DatasetError
from looprl.data.loading import load_task_dataset

GSM8K = Path(__file__).parents[1] / "data" / "gsm8k_train_48.jsonl"
ROWS = [{"prompt": f"p{n}", "answer": str(n), "note": 'N/A, "x"\r\nand so on'} for n in range(10)]


def write(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        datasets.Dataset.from_list(rows).to_parquet(path)
    return str(path)


@pytest.fixture
def refused(tmp_path):
    """Loads a .jsonl file with the given rows (or text) and returns the error's message."""

    def load(rows, **kwargs):
        path = tmp_path / "rows.jsonl"
        path.write_text(rows) if isinstance(rows, str) else write(path, rows)
        with pytest.raises(DatasetError) as error:
            load_task_dataset(str(path), "train", **kwargs)
        return str(error.value)

    return load


def test_real_gsm8k_rows_all_load_with_prompts_made_from_their_questions():
    dataset = load_task_dataset(str(GSM8K), "train")
    original = [json.loads(line) for line in GSM8K.read_text().splitlines()]
    assert len(dataset) == len(original) == 48
    assert [{"question": row["question"], "answer": row["answer"]} for row in dataset] == original
    assert all(row["prompt"] == row["question"] + "\n" for row in dataset)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_every_file_type_keeps_all_rows_columns_and_values(tmp_path, suffix):
    assert load_task_dataset(write(tmp_path / f"rows{suffix}", ROWS), "train").to_list() == ROWS


def test_a_prompt_column_is_used_as_it_is(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"prompt": "as is", "question": "not used"}])
    assert load_task_dataset(path, "train")["prompt"][:] == ["as is"]


def test_a_column_that_the_first_row_lacks_is_kept(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"prompt": "a"}, {"prompt": "b", "answer": "2"}])
    assert load_task_dataset(path, "train")["answer"][:] == [None, "2"]


def test_a_built_in_task_is_drawn_by_split_size_seed_and_options():
    train = load_task_dataset("arithmetic", "train", size=40)
    test = load_task_dataset("arithmetic", "test", size=40)
    assert len(train) == len(test) == 40
    assert not any(map(is_held_out, train["question"])) and all(map(is_held_out, test["question"]))
    assert train["prompt"][0] == train["question"][0] + "\n"
    assert train.to_list() == load_task_dataset("arithmetic", "train", size=40).to_list()
    assert train.to_list() != load_task_dataset("arithmetic", "train", size=40, seed=1).to_list()
    shown = load_task_dataset("arithmetic", "demonstrations", size=40)
    assert not any(map(is_held_out, shown["question"]))
    assert {answer.count("=") for answer in shown["answer"]} == {1, 2}
    long = load_task_dataset("arithmetic", "train", {"num_steps": 4}, size=5)
    assert all(answer.count("=") == 4 for answer in long["answer"])


def test_a_part_of_a_file_is_selected_by_its_split(tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS)
    train, rest = load_task_dataset(path, "train[:80%]"), load_task_dataset(path, "train[80%:]")
    assert train.to_list() + rest.to_list() == ROWS and len(rest) == 2
    assert load_task_dataset(path, "train", size=3).to_list() == ROWS[:3]


def test_a_hub_name_is_loaded_with_its_options(monkeypatch):
    calls = []

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs))
        return datasets.Dataset.from_list([{"question": "q", "answer": "a"}])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    dataset = load_task_dataset("openai/gsm8k", "test", {"name": "main"})
    assert calls == [(("openai/gsm8k",), {"split": "test", "name": "main"})]
    assert dataset["prompt"][:] == ["q\n"]


def test_a_failing_hub_download_says_what_was_tried(monkeypatch):
    def load_dataset(*args, **kwargs):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DatasetError) as error:
        load_task_dataset("openai/gsm8k", "test", {"name": "main"})
    for part in (
        "not a built-in task, no such file",
        "datasets.load_dataset('openai/gsm8k', split='test', name='main')",
        "ConnectionError: no network",
        "built-in tasks: arithmetic",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize("name", ["arithmetc", "arithmetics", "arithmetic.jsonl", "nowhere/rows.csv"])
def test_an_unknown_name_is_refused_without_a_download_and_names_the_tasks(name, monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("went to the hub"))
    with pytest.raises(DatasetError, match="built-in tasks: arithmetic") as error:
        load_task_dataset(name, "train")
    assert ("Did you mean 'arithmetic'?" in str(error.value)) == name.startswith("arithm")


def test_a_missing_prompt_column_lists_the_existing_ones(refused):
    message = refused([{"text": "x", "answer": "1"}])
    assert "no column 'prompt', nor 'question'" in message and "the columns are text, answer" in message


@pytest.mark.parametrize("empty", ["", "\n\n", "[]"])
def test_an_empty_dataset_is_refused(refused, empty):
    assert "the dataset is empty" in refused(empty)


@pytest.mark.parametrize("column", ["prompt", "question"])
@pytest.mark.parametrize(("bad", "what"), [(None, "NoneType"), ("", "an empty string"), (" \n", "an empty string")])
def test_a_row_without_a_prompt_is_named(refused, column, bad, what):
    message = refused([{column: "fine"}, {column: "fine"}, {column: bad}])
    assert "row 2 (counting from 0)" in message and what in message and repr(column) in message


def test_prompts_that_are_not_strings_are_refused(refused):
    assert "row 0 (counting from 0) has int in column 'prompt', not a string" in refused([{"prompt": 5}])
    mixed = refused([{"prompt": "a"}, {"prompt": "b"}, {"prompt": 5}])
    assert "column 'prompt' mixes types: row 0 has str, row 2 has int" in mixed


def test_malformed_files_are_refused_with_the_place(refused, tmp_path):
    assert "line 2: not valid JSON" in refused('{"prompt": "a"}\n{"prompt": \n')
    assert "line 1: a row must be an object" in refused('"just a string"\n')
    assert "is not valid JSON" in refused('[{"prompt": "a"},]')
    cases = {
        "short.csv": (b"prompt,answer\na,1\nb\n", "line 3: 1 values, but the header names 2 columns"),
        "quote.csv": (b'prompt,answer\n"a"b,1\n', "line 2: ',' expected after '\"'"),
        "twice.csv": (b"prompt,prompt\na,1\n", "two columns of the header have the same name"),
        "latin.jsonl": (b'{"prompt": "\xe9"}', "cannot be read as a .jsonl file"),
        "broken.parquet": (b"not parquet", "cannot be read as a .parquet file"),
        "rows.txt": (b"hello", "reads .jsonl, .json, .csv, .parquet files, not .txt"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DatasetError, match=message):
            load_task_dataset(str(tmp_path / name), "train")


def test_requests_that_cannot_be_met_are_refused(refused):
    assert "size is 11, but there are only 10 rows" in refused(ROWS, size=11)
    assert "size must be at least 1, not 0" in refused(ROWS, size=0)
    assert "a file has no task options, so num_steps cannot apply" in refused(ROWS, task_options={"num_steps": 2})
    assert "rename column 'completions'" in refused([{"prompt": "a", "completions": "b"}])
    for split, options, message in (
        ("validation", {}, "no split 'validation'; its splits are train, test, demonstrations"),
        ("train", {"num_step": 2}, r"no task option 'num_step'; .* Did you mean 'num_steps'\?"),
        ("train", {"num_steps": "two"}, "num_steps must be an integer, not 'two'"),
    ):
        with pytest.raises(DatasetError, match=message):
            load_task_dataset("arithmetic", split, options)
