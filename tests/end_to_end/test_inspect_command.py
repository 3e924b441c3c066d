"""`looprl inspect MODEL`: the verdict on models of both kinds, the files that it leaves, and what it refuses."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from looprl.cli import main
from looprl.data.tokenizer import build_tokenizer
from looprl.models import LoopLMConfig, LoopLMForCausalLM
from tests.published import random_published

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = "recipes/quickstart/model"
TWINS = ROOT / "tests/data/twins"
FEW = ("--documents", "16", "--most_neumann_steps", "4")
ONE_STEP = (*FEW, "--task_options", '{"num_steps": 1}')
QUICK = ("--documents", "2", "--most_neumann_steps", "1", "--max_tokens", "24", "--most_loops", "6")


@pytest.fixture
def inspect(tmp_path, capsys):
    """Run `looprl inspect` and return what inspect.json holds and what was printed."""

    def passing(model, *flags):
        assert main(["inspect", str(model), "--output_dir", str(tmp_path / "run"), "--overwrite", *flags]) == 0
        return json.loads((tmp_path / "run/inspect.json").read_text()), " ".join(capsys.readouterr().out.split())

    return passing


@pytest.fixture
def refused(tmp_path, capsys):
    """Run `looprl inspect` and return the error; it must leave no run folder."""

    def failing(*arguments):
        output = ["--output_dir", str(tmp_path / "run")]
        assert main(["inspect", *map(str, arguments), *output]) == 2
        assert not (tmp_path / "run").exists()
        return capsys.readouterr().err

    return failing


def test_a_family_that_draws_its_initial_states_is_asked_whether_they_matter(inspect, tmp_path):
    tokenizer = build_tokenizer()
    model = random_published("huginn", vocab_size=len(tokenizer), num_loops=12)
    with torch.no_grad():  # what remains of the state shrinks with every loop
        model.model.core.injection.adapter.weight[:, : model.config.hidden_size] *= 0.1
    tokenizer.save_pretrained(tmp_path / "model")
    model.save_pretrained(tmp_path / "model")
    found = {}
    for loops in (1, 12):
        found[loops], printed = inspect(tmp_path / "model", *QUICK[:-2], "--num_loops", str(loops))
        assert "Is the endpoint the same whatever the initial state? " in printed
        pairs = [(gap["first"], gap["second"]) for gap in found[loops]["initial_states"]]
        assert pairs == [("zero", "drawn 1"), ("zero", "drawn 2"), ("drawn 1", "drawn 2")]
    assert not found[1]["verdict"]["initial_state"]["safe"] and found[12]["verdict"]["initial_state"]["safe"]


def cosines(content, estimator="reuse", replay_from="penultimate"):
    rows = [row for row in content["reuse"] if (row["estimator"], row["replay_from"]) == (estimator, replay_from)]
    assert [row["neumann_steps"] for row in rows] == list(range(5))
    return [row["cosine_to_full"]["all"] for row in rows]


def test_the_quickstart_model_is_safe_in_everything_and_says_so(inspect, tmp_path):
    content, printed = inspect(QUICKSTART, *FEW)
    verdict = content["verdict"]
    findings = ("converges", "terminal_kv", "reuse_from_penultimate", "reuse_from_endpoint", "depth")
    assert all(verdict[name]["safe"] for name in findings)
    assert verdict["recipe"]["estimator"] == "reuse" and verdict["recipe"]["replay_from"] == "penultimate"
    found = cosines(content)
    assert found[0] > 0.99 and found[1] > 0.999 and found[2] > 0.9999
    lost = [1 - cosine for cosine in found]  # each step shrinks what the series leaves out
    assert lost[1] < 0.2 * lost[0] and lost[2] < 0.2 * lost[1]
    assert content["loops"][5]["residual_mean"] < 1e-3 and content["spectral_radius"]["max"] < 0.6
    assert abs(content["kv"]["difference"]) < 1e-4
    assert content["loops"][5]["nll"] == pytest.approx(content["kv"]["per_loop"], abs=1e-4)
    assert (
        sum(row["tokens_converging"] for row in content["loops"]) + content["tokens_not_converging"]
        == content["tokens"]
    )
    assert content["initial_states"] == [] and verdict["initial_state"] is None
    assert content["remarks"] == [f"Text: 16 documents of arithmetic (demonstrations), {content['tokens']} tokens."]
    assert "Is reuse from the penultimate state safe? Yes, with neumann_steps: 0 or more" in printed
    assert "Train with estimator: reuse" in printed
    png, report = (tmp_path / "run/inspect.png").read_bytes(), (tmp_path / "run/report.html").read_text()
    assert png.startswith(b"\x89PNG")
    assert "data:image/png;base64" in report and verdict["converges"]["answer"] in report
    assert (tmp_path / "run/config.yaml").is_file()


def test_on_the_converging_twin_reuse_is_safe_from_one_step_on(inspect):
    content, _ = inspect(TWINS / "converging", *ONE_STEP)
    verdict = content["verdict"]
    assert all(verdict[name]["safe"] for name in ("converges", "terminal_kv", "reuse_from_penultimate", "depth"))
    assert verdict["recipe"] == {"estimator": "reuse", "replay_from": "penultimate", "neumann_steps": 1}
    found = cosines(content)
    assert found[0] < 0.99 < found[1] < found[2] < found[3] and found[4] > 0.9995


def test_on_the_nonconverging_twin_reuse_is_unsafe_and_full_bptt_is_named(inspect):
    content, printed = inspect(TWINS / "nonconverging", *ONE_STEP)
    verdict = content["verdict"]
    unsafe = ("converges", "terminal_kv", "reuse_from_penultimate", "reuse_from_endpoint")
    assert not any(verdict[name]["safe"] for name in unsafe)
    assert verdict["recipe"] == {"estimator": "full"}
    assert max(cosines(content)) < 0.95 and max(cosines(content, "recompute")) < 0.95
    assert content["loops"][5]["residual_mean"] > 0.3 and content["tokens_not_converging"] > 0.8 * content["tokens"]
    assert "Is reuse from the penultimate state safe? No: the best cosine" in printed
    assert "Train with estimator: full" in printed


def test_the_same_command_gives_the_same_numbers_and_batches_do_not_matter(inspect):
    first, _ = inspect(QUICKSTART, *QUICK, "--documents", "6", "--seed", "3")
    second, _ = inspect(QUICKSTART, *QUICK, "--documents", "6", "--seed", "3")
    assert first == second
    split, _ = inspect(QUICKSTART, *QUICK, "--documents", "6", "--seed", "3", "--batch_size", "2")
    for whole, part in zip(first["loops"], split["loops"], strict=True):
        # residuals near 1e-5 carry the rounding of single precision
        assert part == pytest.approx(whole, rel=1e-3, abs=1e-6)
    assert split["kv"] == pytest.approx(first["kv"], abs=1e-6)
    assert split["tokens"] == first["tokens"]


def test_own_text_is_read_cut_and_counted(inspect, tmp_path):
    (tmp_path / "text.txt").write_text("Tom has 12 apples. Tom buys 3.\n\n" + "Tom buys 3. " * 20)
    content, printed = inspect(QUICKSTART, *QUICK, "--text", str(tmp_path / "text.txt"), "--num_loops", "2")
    assert content["remarks"][0].startswith("Text: 2 documents of ") and len(content["remarks"]) == 2
    assert "1 of them are longer than 24 tokens and were cut there" in printed
    assert content["num_loops"] == 2 and {row["num_loops"] for row in content["reuse"]} == {2}


def test_a_model_that_overflows_is_unsafe_and_its_numbers_are_null(inspect, tmp_path):
    torch.manual_seed(0)
    config = LoopLMConfig(vocab_size=379, norm_placement="pre", injection="linear", num_loops=30)
    model = LoopLMForCausalLM(config)
    with torch.no_grad():
        model.model.core.injection.adapter.weight *= 1e3
    model.save_pretrained(tmp_path / "model")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / QUICKSTART / file, tmp_path / "model")
    content, printed = inspect(tmp_path / "model", *QUICK, "--most_loops", "32")
    verdict = content["verdict"]
    assert not verdict["converges"]["safe"] and not verdict["reuse_from_penultimate"]["safe"]
    assert content["loops"][-1]["residual_mean"] is None and content["kv"]["terminal"] is None
    assert verdict["recipe"] == {"estimator": "full"} and "nan" in printed


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--num_loops", "0"), "num_loops must be at least 1"),
        (("--most_loops", "0"), "most_loops must be at least 1"),
        (("--most_loops", "3"), "most_loops (3) must be at least the model's num_loops (6)"),
        (("--num_loops", "9", "--most_loops", "8"), "most_loops (8) must be at least num_loops (9)"),
        (("--most_neumann_steps", "-1"), "most_neumann_steps must be at least 0"),
        (("--documents", "0"), "documents must be at least 1"),
        (("--max_tokens", "1"), "max_tokens must be at least 2"),
        (("--batch_size", "0"), "batch_size must be at least 1"),
        (("--device", "tpu"), "choose cpu or cuda"),
        (("--kv_policy", "shared"), "terminal, per_loop"),
        (("--document", "3"), "did you mean --documents?"),
        (("--text", "nowhere.txt"), "no file nowhere.txt"),
        (("--task_options", '{"steps": 1}'), "no task option 'steps'"),
        (("--text", "README.md", "--task_options", '{"num_steps": 1}'), "a file given with --text has none"),
    ],
)
def test_bad_options_are_user_errors_before_anything_is_written(refused, flags, words):
    assert words in refused(QUICKSTART, *flags)


def test_a_missing_model_or_one_that_is_not_looped_is_refused(refused, tmp_path):
    assert "MODEL is missing: looprl inspect MODEL" in refused()
    assert "no model at" in refused(tmp_path / "nothing")
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama/config.json").write_text(json.dumps({"model_type": "llama"}))
    assert "not a looped model" in refused(tmp_path / "llama")


def test_a_tokenizer_that_is_missing_or_does_not_fit_is_refused(refused, tmp_path):
    LoopLMForCausalLM(LoopLMConfig(vocab_size=100)).save_pretrained(tmp_path / "model")
    assert "no tokenizer" in refused(tmp_path / "model")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / QUICKSTART / file, tmp_path / "model")
    message = refused(tmp_path / "model")
    assert "tokenizer does not fit" in message and "100 tokens" in message


def test_an_existing_run_folder_is_kept(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/inspect.json").write_text("{}")
    assert main(["inspect", QUICKSTART, "--output_dir", str(tmp_path / "run")]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (tmp_path / "run/inspect.json").read_text() == "{}"
