"""Numbers as people write them are read exactly."""

from fractions import Fraction

import pytest

from looprl.answers.numbers import Number, for_math_verify, numbers_in, read_number


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("72", 72), ("-3", -3), ("- 3", -3), ("−3", -3), ("1,234", 1234), ("1,234,567.50", "1234567.5"), (".5", "1/2"),
        ("$70,000", 70000), ("-$5", -5), ("$-5", -5), ("€ 5", 5), ("2 2/3", "8/3"), ("-2 1/2", "-5/2"), ("7/8", "7/8"),
        (r"2\frac{1}{2}", "5/2"), (r"\dfrac{5}{2}", "5/2"), (r"\frac12", "1/2"), (r"-\frac{3}{4}", "-3/4"),
        (r"\$11,\!500", 11500), (r"11,\! 111,\! 100", 11111100), ("70{,}000", 70000), ("$18$", 18), ("**18**", 18),
        (r"\text{18}", 18), ("18.", 18), ("0018", 18), ("18.00", 18), (r"\(18\)", 18),
    ],
)  # fmt: skip
def test_value_is_exact(written, value):
    assert read_number(written) == Number(Fraction(value))


@pytest.mark.parametrize(
    "text", ["", ",", "$", "eighteen", "1 2", "18 dollars", "5/0", "1,23", "1 5/3", "١٨", "x", "3+5"]
)
def test_anything_else_is_no_number(text):
    assert read_number(text) is None


def test_percentage_answers_its_number_and_a_gold_percentage_its_value_too():
    half, fifty, fifty_percent = (read_number(text) for text in ("0.5", "50", r"50\%"))
    assert fifty_percent.answers(fifty) and fifty_percent.answers(fifty_percent) and fifty.answers(fifty_percent)
    assert not fifty_percent.answers(half) and half.answers(fifty_percent) and not half.answers(fifty)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("first 3, then 18", [3, 18]), ("10-4", [10, 4]), ("(3)-4", [3, 4]), ("7 - 4", [7, 4]), ("= -4", [-4]),
        ("1,2,3", [1, 2, 3]), ("18e", [18]), ("no.5", [5]), ("in 2 1/2 hours", ["5/2"]), ("", []), ("5/0 or 7", [7]),
    ],
)  # fmt: skip
def test_numbers_of_a_text_are_found_in_order(text, values):
    assert [number.value for number in numbers_in(text)] == [Fraction(value) for value in values]


def test_a_number_of_any_length_is_read():
    assert read_number("9" * 5000).value == 10**5000 - 1


def test_math_verify_gets_sums_for_mixed_numbers_and_no_separators():
    assert for_math_verify("2 1/2 + 1") == "(2+1/2) + 1"
    assert for_math_verify(r"2\frac{1}{2}x") == "(2+1/2)x"
    assert for_math_verify(r"$\$1,\!234 + 1,000$") == "1234 + 1000"
    assert for_math_verify(r"x^2\frac{1}{2}") == r"x^2\frac{1}{2}"
