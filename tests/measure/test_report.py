"""report.html: everything of a run in one file that asks no network, whatever the run left behind."""

import base64
import io
import re
import shutil
from html.parser import HTMLParser

import matplotlib
import pytest
from PIL import Image

from looprl.measure.pass_at_k import wilson_interval
from looprl.measure.report import write_report
from looprl.runs import RunFolder

PHASES = ("rollout", "reward", "scoring", "backward", "optimizer", "sync")
VOID = {"meta", "link", "img", "br"}
FILES = (
    "config.yaml",
    "metrics.jsonl",
    "summary.json",
    "completions/eval-before.jsonl",
    "completions/eval-after.jsonl",
)


def metrics(step):
    return {
        "step": step,
        "reward": 0.3 + 0.02 * step,
        **{f"time/{phase}": 0.1 for phase in PHASES},
        "replay/logprob_gap_max": 4e-6,
        "replay/logprob_gap_mean": 1e-7,
        "replay/residual": 1e-3 * step,
        "completions/mean_length": 12.0,
        "completions/min_length": 9.0,
        "completions/max_length": 16.0,
        "loss": float("nan"),
    }


def completions(word, rewards):
    return [
        {"prompt": f"question {i} & more", "answer": "#### 5", "completion": f"{word} {i}", "reward": reward}
        for i, reward in enumerate(rewards)
    ]


@pytest.fixture
def run(tmp_path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "quickstart")
    folder.write_config({"seed": 7, "model": "some/model", "estimator": "reuse", "max_completion_length": 16})
    for step in range(1, 25):
        folder.append_metrics(metrics(step) | ({"eval_pass_at_1": 0.5} if step % 8 == 0 else {}))
    folder.write_completions("eval-before", completions("first", [1.0, 0.0, 0.0, 0.0] * 5))
    folder.write_completions("eval-after", completions("last", [1.0, 1.0, 1.0, None] * 5))
    folder.write_summary({"pass_at_1_before": 0.25, "pass_at_1_after": 1.0, "n": 15, "steps": 24, "seconds": 61.0})
    return folder


def report(run: RunFolder) -> str:
    return write_report(run.path).read_text(encoding="utf-8")


class Page(HTMLParser):
    """Checks that every element is closed in order; keeps images, headings and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.images, self.headings, self.tags, self.text = [], [], [], set(), ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag == "img":
            self.images.append(dict(attributes))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open[-1:] == ["h2"]:
            self.headings.append(data)


def figures(text):
    """The PNG files inside the report, decoded."""
    sources = re.findall(r'src="data:image/png;base64,([^"]*)"', text)
    return [Image.open(io.BytesIO(base64.b64decode(source))) for source in sources]


def test_report_is_whole_html_with_language_title_and_described_figures(run):
    text = report(run)
    page = Page(text)
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert "<title>looprl run quickstart</title>" in text and "@media print" in text
    assert page.headings == [
        "Result", "Reward", "pass@1 on held-out prompts", "Where the time went", "Sampler and replay",
        "Completion length", "Completions before and after", "Configuration", "Versions",
    ]  # fmt: skip
    assert len(page.images) == 5 and all(len(image["alt"]) > 20 for image in page.images)
    assert len(figures(text)) == 5
    # 200 dots per inch or more over the 7.4 inches of a printed page, and something drawn
    assert all(
        image.format == "PNG" and image.width >= 7.4 * 200 and image.convert("L").getextrema() == (0, 255)
        for image in figures(text)
    )
    assert "question 11 & more" in page.text and "question 12" not in page.text
    assert "first 11" in page.text and "last 11" in page.text
    assert "seed: 7" in page.text and "python" in page.text


def test_headline_gives_both_rates_with_their_own_n_and_wilson_interval(run):
    page = Page(report(run))
    low, high = wilson_interval(0.25, 20)
    assert f"before training0.250{low:.3f} to {high:.3f}20after training1.0000.796 to 1.00015" in page.text
    assert "24 optimizer steps in 61 s" in page.text


def test_wilson_interval_matches_published_values():
    # Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29
    for successes, n, low, high in [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611)]:
        assert wilson_interval(successes / n, n) == pytest.approx((low, high), abs=5e-5)
    assert wilson_interval(1 / 29, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


def test_pass_rate_curve_has_the_evaluations_on_the_way(run):
    alts = [image["alt"] for image in Page(report(run)).images]
    assert "pass@1 0.250 at step 0, 0.500 at step 8, 0.500 at step 16, 1.000 at step 24" in alts


def test_a_controlled_run_shows_how_far_its_gradient_was_and_says_where_it_was_unsafe(run):
    assert "Control" not in " ".join(Page(report(run)).headings)
    for step, cosine in ((25, 0.99995), (26, 0.9321)):
        run.append_metrics({"step": step, "control/cosine_to_full": cosine, "control/recompute_to_full": 0.9999})
    page = Page(report(run))
    assert "Control: the gradient beside full BPTT" in page.headings and len(page.images) == 6
    assert "At step 26 the gradient's cosine to full BPTT was 0.9321: it is not safe." in page.text
    assert any("0.932100 at the least, 0.932100 at step 26" in image["alt"] for image in page.images)


def test_report_asks_no_network(run):
    text = report(run)
    assert "://" not in text
    assert set(re.findall(r'(?:src|href|srcset|action)="(.{5})', text)) == {"data:"}
    assert "url(" not in text and "@import" not in text and "script" not in Page(text).tags
    assert "default-src 'none'" in text


def test_sampled_text_and_settings_are_shown_literally(run):
    nasty = "<script>alert(1)</script> \x00\x1b \ud800 \"quoted\" 'and' </td>"
    run.write_completions("eval-after", [{"prompt": "<b>p</b>", "answer": "<i>", "completion": nasty, "reward": 0.0}])
    run.write_completions("eval-before", [{"prompt": "<b>p</b>", "completion": "", "reward": None}])
    run.write_config({"model": "<script>model</script>", "max_completion_length": "<img src=x>"})
    text = report(run)
    page = Page(text)
    assert not {"script", "b", "i"} & page.tags and len(page.images) == 5
    assert "<script>alert(1)</script> \\x00\\x1b \\ud800" in page.text and "<img src=x>" in page.text
    assert "(empty)" in page.text and "not judged" in page.text


def test_conversations_are_shown_as_messages(run):
    rows = [{"prompt": [{"role": "user", "content": "hello"}], "completion": "hi", "reward": 1.0}]
    run.write_completions("eval-before", rows)
    assert "user: hello" in Page(report(run)).text


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_said_and_the_rest_is_shown(run, name):
    (run.path / name).unlink()
    page = Page(report(run))
    assert f"{name} is missing" in page.text
    assert len(page.images) == (1 if name == "metrics.jsonl" else 5)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe: [", b"[1]\n[2]\n", b"null", b'{"step": "x", "reward": []}\n'])
def test_damaged_files_do_not_stop_the_report(run, content):
    for name in FILES:
        (run.path / name).write_bytes(content)
    assert len(Page(report(run)).headings) == 9


def test_an_empty_folder_gives_a_report_too(tmp_path):
    page = Page(write_report(tmp_path).read_text())
    assert page.images == [] and all(f"{name} is missing" in page.text for name in FILES)
    assert "did not reach its end" in page.text and page.text.count("not measured") == 2


def test_interrupted_run_says_so_and_shows_what_there_is(run):
    (run.path / "summary.json").unlink()
    (run.path / "completions" / "eval-after.jsonl").unlink()
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 25, "rew')
    page = Page(report(run))
    assert "did not reach its end; its last logged step is 24" in page.text
    assert "before training0.250" in page.text and "after trainingnot measured" in page.text
    assert len(page.images) == 5


def test_a_single_step_and_zero_gaps_are_drawn(run):
    row = metrics(1) | {"replay/logprob_gap_max": 0.0, "replay/logprob_gap_mean": 0.0}
    (run.path / "metrics.jsonl").unlink()
    run.append_metrics(row)
    assert len(Page(report(run)).images) == 5


def test_unmeasured_pass_rate_is_said(run):
    run.write_summary({"pass_at_1_before": None, "pass_at_1_after": None, "n": 0, "steps": 3, "seconds": 2.0})
    shutil.rmtree(run.path / "completions")
    assert Page(report(run)).text.count("not measured") == 2


def test_the_same_folder_gives_the_same_bytes_and_matplotlib_is_left_alone(run):
    settings = dict(matplotlib.rcParams)
    first = write_report(run.path).read_bytes()
    assert write_report(run.path).read_bytes() == first
    assert dict(matplotlib.rcParams) == settings
