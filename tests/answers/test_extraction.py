r"""Where the final answer stands: the last of `####`, `\boxed{}` and a statement."""

import pytest

from looprl.answers.extraction import Answer, find_answer, last_formula


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("2 + 3 = 5\n#### 5\nthen more", "5"),
        ("#### 4\n#### 5", "5"),
        (r"\boxed{4} so \boxed{5}", "5"),
        (r"\boxed{4}" "\n#### 5", "5"),
        ("#### 4\n" r"\boxed{5}", "5"),
        (r"\boxed{\frac{1}{2}} is it", r"\frac{1}{2}"),
        (r"\fbox{5}", "5"),
        (r"\boxed {5}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        ("The answer is 5. I checked 7.", "5"),
        ("The answer is 3.5.", "3.5"),
        ("Final Answer: 5", "5"),
        ("**Answer:** 5", "5"),
        ("The final answer to the question is: 5\n7", "5"),
        ("answer = 5", "5"),
        (r"The answer is \boxed{5}.", "5"),
        (r"\boxed{4}. No, the answer is 5.", "5"),
        ("####", ""),
        (r"\boxed{}", ""),
        (r"\boxed{12", ""),
        (r"\boxed{4} \boxed{\frac{1}{2", ""),
    ],
)
def test_last_mark_decides(completion, answer):
    assert find_answer(completion).text == answer


@pytest.mark.parametrize("completion", ["", "5 apples", "### 5", "she answered 5 calls", "boxed{5}"])
def test_text_without_a_mark_has_no_marked_answer(completion):
    assert find_answer(completion) is None


def test_last_formula_of_a_text_is_found_in_every_notation():
    for last in ("$x$", "$$x$$", r"\(x\)", r"\[x\]"):
        assert last_formula(f"$y$ and {last}.") == "x"
    assert last_formula("no formula") is None


def test_long_texts_are_read_in_linear_time():
    for text in ("answer " * 20000, r"\boxed{" * 1000, "{" * 20000, "#" * 20000, "answer is" * 9000):
        assert find_answer(text) in (None, Answer("", exact=True))
