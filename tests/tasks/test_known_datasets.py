"""GSM8K, MATH-500 and MBPP+ from files and from the hub: their prompts, and what their rewards need."""

import json
from pathlib import Path

import datasets
import pytest
from datasets import Dataset

from looprl.data.checks import check_disjoint
from looprl.data.errors import DatasetError
from looprl.data.loading import load_task_dataset
from looprl.data.mbppplus import convert
from looprl.data.mbppplus_inputs import restore
from looprl.rewards import load_reward
from looprl.sandbox.inside.values import decode

DATA = Path(__file__).parents[1] / "data"
GSM8K = [json.loads(line) for line in (DATA / "gsm8k_train_48.jsonl").read_text().splitlines()]
MBPP = [json.loads(line) for line in (DATA / "mbppplus_100.jsonl").read_text().splitlines()]
MATH = [{"problem": "What is $1+1$?", "solution": r"\boxed{2}", "answer": "2", "subject": "Algebra", "level": 1}]

HUB_SCRIPT = """\
import numpy as np

open({marker!r}, "w").write("executed")


def is_floats(x) -> bool:
    return isinstance(x, float)


def assertion(out, exp, atol):
    assert out == exp

inputs = {inputs!r}
{rest}
"""
WITH_RESULTS = """results = {results!r}
for i, (inp, exp) in enumerate(zip(inputs, results)):
    assertion({name}(*inp), exp, {atol})"""
WITH_REFERENCE = """for i, inp in enumerate(inputs):
    assertion({name}(*inp), ref_func(*inp), {atol})"""


@pytest.fixture
def hub(monkeypatch):
    """Serve rows in the place of the hub, and keep what was asked for."""
    calls = []

    def serve(rows):
        def load_dataset(*args, **kwargs):
            calls.append((*args, kwargs))
            return Dataset.from_list(rows)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return calls

    return serve


def inputs_of(row):
    return [decode(form) for form in json.loads(row["tests"])["inputs"]]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (None, "{question}\n"),
        ("plain", "Reason step by step, {rest}\n\nQuestion: {question}\nAnswer:"),
        ("chat", [{"role": "user", "content": "{question}\n\nReason step by step, {rest}"}]),
    ],
)
def test_gsm8k_from_a_file_has_the_prompts_of_its_template(tmp_path, suffix, template, prompt):
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        Dataset.from_list(GSM8K).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in GSM8K))
    dataset = load_task_dataset(str(path), "train", {"template": template} if template else None)
    filling = {"rest": "then write the final answer as a number on a line of its own, after ####."}
    for row, original in zip(dataset, GSM8K, strict=True):
        filled = json.loads(json.dumps(prompt).replace("{question}", json.dumps(original["question"])[1:-1]))
        text = row["prompt"] if isinstance(filled, str) else row["prompt"][0]["content"]
        expected = filled if isinstance(filled, str) else filled[0]["content"]
        assert text == expected.replace("{rest}", filling["rest"])
        assert {name: row[name] for name in original} == original


def test_known_hub_names_are_asked_for_their_configuration(hub):
    calls = hub(GSM8K)
    load_task_dataset("openai/gsm8k", "test", {"template": "chat"})
    load_task_dataset("openai/gsm8k", "train", {"name": "socratic"})
    hub(MATH)
    dataset = load_task_dataset("HuggingFaceH4/MATH-500", "test", {"template": "plain"})
    assert calls == [
        ("openai/gsm8k", {"split": "test", "name": "main"}),
        ("openai/gsm8k", {"split": "train", "name": "socratic"}),
        ("HuggingFaceH4/MATH-500", {"split": "test"}),
    ]
    assert dataset["prompt"][0].endswith("Problem: What is $1+1$?\nSolution:")
    assert load_task_dataset("HuggingFaceH4/MATH-500", "test")["prompt"][0] == "What is $1+1$?\n"


def test_math500_rows_are_judged_by_their_answer_column(hub):
    hub(MATH)
    rows = load_task_dataset("HuggingFaceH4/MATH-500", "test")
    reward = load_reward("rewards/math500.py:accuracy")
    right, wrong = (reward(prompts=["p"], completions=[text], answer=rows["answer"][:]) for text in ("It is 2.", "3"))
    assert (right, wrong) == ([1.0], [0.0])


def test_chat_prompts_are_compared_by_their_text(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in GSM8K))
    train, rest = (load_task_dataset(str(path), split, {"template": "chat"}) for split in ("train[:20]", "train[20:]"))
    check_disjoint(train, rest)
    with pytest.raises(DatasetError, match="5 of 5 evaluation prompts"):
        check_disjoint(train, train.select(range(5)))


def test_templates_that_do_not_exist_or_do_not_apply_are_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "p"}) + "\n")
    with pytest.raises(DatasetError, match="template 'chat' cannot apply: the columns prompt are not those of GSM8K"):
        load_task_dataset(str(path), "train", {"template": "chat"})
    with pytest.raises(
        DatasetError, match=r"no template 'chatt'; those of GSM8K are plain, chat\. Did you mean 'chat'"
    ):
        load_task_dataset(str(DATA / "gsm8k_train_48.jsonl"), "train", {"template": "chatt"})


@pytest.mark.parametrize("prompt", [[], [{"role": "user"}], ["text"]])
def test_prompt_that_is_no_list_of_messages_is_refused(tmp_path, prompt):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": prompt}) + "\n")
    with pytest.raises(DatasetError, match=r"row 0 .* a list in column 'prompt' that does not hold messages"):
        load_task_dataset(str(path), "train")


def test_mbppplus_rows_say_what_to_write_and_carry_all_inputs():
    dataset = load_task_dataset(str(DATA / "mbppplus_100.jsonl"), "train")
    assert len(dataset) == 100
    for row, original in zip(dataset, MBPP, strict=True):
        tests = json.loads(row["tests"])
        assert f"{original['entry_point']}(" in row["prompt"] and row["prompt"].count('"""') == 2
        assert len(tests["inputs"]) == len(original["base_input"]) + len(original["plus_input"])
        assert tests["reference"] == original["canonical_solution"] and tests["atol"] == original["atol"]
    chat = load_task_dataset(str(DATA / "mbppplus_100.jsonl"), "train", {"template": "chat"})
    assert "```python block" in chat["prompt"][0][0]["content"]


def test_arguments_that_json_cannot_carry_are_restored():
    assert restore("Mbpp/2", [[[3, 4], [5]]]) == [[(3, 4), (5,)]]
    assert restore("Mbpp/63", [[[[3, 5], [1, 7]]]]) == [[[(3, 5), (1, 7)]]]
    assert restore("Mbpp/75", [[[[6, 24], [7]], 6]]) == [[[(6, 24), (7,)], 6]]
    assert restore("Mbpp/106", [[[5, 6], [9, 10]]]) == [[[5, 6], (9, 10)]]
    assert restore("Mbpp/115", [[[[1, 2], []]]]) == [[[{1, 2}, {}]]]
    assert restore("Mbpp/124", [["0.5", "1j"]]) == [[0.5, 1j]]
    assert restore("Mbpp/252", [["(1+2j)"]]) == [[1 + 2j]]
    assert restore("Mbpp/250", [[[10, 8], 4]]) == [[(10, 8), 4]]
    assert restore("Mbpp/259", [[[[1, 3]], [[6, 7]]]]) == [[((1, 3),), ((6, 7),)]]
    assert restore("Mbpp/278", [[[1, 5, [1, 2]]]]) == [[(1, 5, (1, 2))]]
    assert restore("Mbpp/307", [[["H", 5, [], True], 2, 50]]) == [[("H", 5, [], True), 2, 50]]
    assert restore("Mbpp/580", [[[4, [7, [1, 2]]]]]) == [[(4, (7, (1, 2)))]]
    assert restore("Mbpp/722", [[{"a": [6.2, 70]}, 6.0]]) == [[{"a": (6.2, 70)}, 6.0]]
    assert restore("Mbpp/4", [[[1, [2]], 3]]) == [[[1, [2]], 3]]


def test_both_public_schemas_give_the_same_tests(hub, tmp_path):
    originals = load_task_dataset(str(DATA / "mbppplus_100.jsonl"), "train")
    reward, marker, rows = load_reward("rewards/mbppplus.py:all_tests_pass"), tmp_path / "executed", []
    for row, original in list(zip(originals, MBPP, strict=True))[:12]:
        rest = WITH_REFERENCE.format(name=original["entry_point"], atol=original["atol"])
        script = HUB_SCRIPT.format(marker=str(marker), inputs=inputs_of(row), rest=rest)
        text = original["prompt"].strip("'\n")
        task_id = original["task_id"].removeprefix("Mbpp/")
        shown = original["assertion"].strip().split("\n")
        rows.append(
            {
                "task_id": task_id,
                "code": original["canonical_solution"],
                "prompt": text,
                "test": script,
                "test_list": shown,
            }
        )
    calls = hub(rows)
    dataset = load_task_dataset("evalplus/mbppplus", "test")
    assert calls == [("evalplus/mbppplus", {"split": "test"})] and not marker.exists()
    for row, original in zip(dataset, originals, strict=False):
        assert json.loads(row["tests"]) == json.loads(original["tests"])
        assert row["prompt"] == original["prompt"] and row["entry_point"] == original["entry_point"]
    solutions = [row["code"] for row in rows]
    assert reward(prompts=["p"] * 12, completions=solutions, tests=dataset["tests"][:]) == [1.0] * 12


def test_results_of_a_hub_script_are_what_is_expected(tmp_path):
    inputs = [[(1, 2)], [{3, 4}], [float("inf")], [-float("inf")], [1 - 2j], [set()], [None]]
    results = [2, 2, float("inf"), float("nan"), 1j, 0, "x"]
    rest = WITH_RESULTS.format(results=results, name="size", atol=0.01)
    script = HUB_SCRIPT.format(marker=str(tmp_path / "executed"), inputs=inputs, rest=rest)
    row = convert({"task_id": 7, "code": "def size(x): ...", "prompt": "Say how large it is.", "test": script})
    tests = json.loads(row["tests"])
    assert inputs_of(row) == inputs and tests["atol"] == 0.01 and row["task_id"] == "7"
    assert repr([decode(form) for form in tests["expected"]]) == repr(results)
    assert row["prompt"].endswith("The function is called size.") and not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("inputs = [", "SyntaxError"),
        ("inputs = [[1]]", "no call of `assertion`"),
        ("for inp in []: assertion(f(*inp), 1, 0)", "no `inputs`"),
        ("inputs = [[1], [2]]\nresults = [1]\nassertion(f(*inp), exp, 0)", "2 inputs and 1 results"),
        ("inputs = make()\nresults = [1]\nassertion(f(*inp), exp, 0)", "ValueError"),
        ("inputs = []\nassertion(f(*inp), exp, 0)", "no inputs"),
    ],
)
def test_test_script_that_cannot_be_read_is_named_with_its_task(script, message):
    with pytest.raises(DatasetError, match=rf"MBPP\+ task 9: .*{message}"):
        convert({"task_id": 9, "code": "def f(x): ...", "prompt": "f", "test": script})
