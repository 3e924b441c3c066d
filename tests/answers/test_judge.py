"""Comparing formulas: what is equal, in bounded time, from any thread and any process."""

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from looprl.answers import equality, final_answer, number_scores, solution_scores
from looprl.sandbox.limits import MIB, Limits

PATHOLOGICAL = [
    r"9^{9^{9^{9}}}", "(10^{10})!", "(" * 3000 + "1" + ")" * 3000, r"\int_0^1 x^{x^{x}}+3 dx", r"2^{2^{100}}+3",
    r"\sum_{i=1}^{100000000} i + 0", r"\frac{1}{0}+1", "999999!-1", "1+" + "{" * 500 + "}" * 500, "1+" * 5000 + "1",
]  # fmt: skip


@pytest.mark.parametrize(
    ("completion", "gold", "score"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac12", 1), (r"\boxed{0.5}", r"\frac12", 1),
        (r"\boxed{\frac{1}{3}}", r"\frac12", 0),
        (r"so it is $\left(3, \frac{\pi}{2}\right)$.", r"\left( 3, \frac{\pi}{2} \right)", 1),
        (r"\boxed{(3, \pi/3)}", r"\left( 3, \frac{\pi}{2} \right)", 0),
        (r"\boxed{q-p}", "p - q", 0), (r"\boxed{-q+p}", "p - q", 1), (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}", 1),
        (r"\boxed{\text{Evan}}", r"\text{Evelyn}", 0), (r"\boxed{6\sqrt3}", r"3\sqrt{12}", 1),
        (r"\boxed{11,\!111}", r"11,\! 111", 1), (r"\boxed{11,\!112}", r"11,\! 111", 0),
        (r"The answer is $x^2+2x+1$.", "(x+1)^2", 1), (r"\boxed{2 \frac{1}{2}x}", r"\frac{5}{2}x", 1),
        (r"\boxed{[1,2)}", "[1,2)", 1), (r"\boxed{(1,2)}", "[1,2)", 0), (r"\boxed{-2,1}", "1,-2", 1),
        (r"\boxed{1}", "1,-2", 0), (r"\boxed{2516_8}", "2516_8", 1), (r"\boxed{90}", r"90^\circ", 1),
        ("no formula", "p - q", 0), (r"\boxed{}", "p - q", 0), (r"\boxed{2}", "", None), (r"\boxed{2}", "None", 0),
    ],
)  # fmt: skip
def test_solutions_are_compared_as_mathematics(completion, gold, score):
    assert solution_scores([completion], [gold]) == [score]


def test_good_answers_after_pathological_ones_score_in_bounded_time_and_leave_no_process(monkeypatch):
    monkeypatch.setattr(equality, "LIMITS", Limits(seconds=2.0, memory_bytes=1024 * MIB))
    before = children_of_servers()
    start = time.monotonic()
    scores = number_scores([rf"\boxed{{{formula}}}" for formula in [*PATHOLOGICAL, *["4+4"] * 10]], ["8"] * 20)
    assert scores == [0.0] * 10 + [1.0] * 10
    assert time.monotonic() - start < 10 * (2 + 3)
    assert children_of_servers() <= before


SOME = ([r"\boxed{3+5}", r"\boxed{3+6}", "#### 8", r"\boxed{(2}", "8 apples"], ["8"] * 5)


def put_scores(queue):
    queue.put(number_scores(*SOME))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_scores_are_the_same_in_a_thread_and_in_a_worker_process(method):
    expected = [1.0, 0.0, 1.0, 0.0, 1.0]
    assert number_scores(*SOME) == expected
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: number_scores(*SOME), range(2))) == [expected] * 2
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=put_scores, args=(queue,), daemon=True)
    process.start()
    assert queue.get(timeout=60) == expected
    process.join()
    assert number_scores(*SOME) == expected


def children_of_servers():
    """The processes of formula servers that are not servers themselves."""
    parents = {}
    for entry in Path("/proc").iterdir():
        try:
            if b"looprl.answers.math_server" in (entry / "cmdline").read_bytes():
                parents[entry.name] = (entry / "stat").read_text().rpartition(")")[2].split()[1]
        except (OSError, ValueError):
            continue
    return {process for process, parent in parents.items() if parent in parents}


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("#### 1,234", "1234"),
        ("so 3 + 4 = 7\n#### x = $1,234.00", "1234"),
        ("The answer is 12 apples, not 13.", "12"),
        (r"\boxed{2\frac{1}{2}}", "5/2"),
        ("I count 3, then 72 apples", "72"),
        (r"\boxed{x + 1}", "x + 1"),
        (r"it is $\sqrt{2}$", r"\sqrt{2}"),
        ("it is $70", "70"),
        (r"\boxed{12", None),
        ("no idea", None),
        ("", None),
    ],
)
def test_votes_are_the_same_for_equal_numbers_and_none_where_nothing_is_answered(completion, answer):
    assert final_answer(completion) == answer
