"""Values survive the way out of the sandbox, and are equal where Python says so or the tolerance allows it."""

import json
import math
from collections import Counter, OrderedDict, namedtuple

import pytest

from looprl.sandbox.comparison import same, same_elements
from looprl.sandbox.inside.values import decode, encode

VALUES = [
    None, True, False, 0, -5, 10**30, -(2**70), 10**5000, 0.1, -0.0, math.inf, "", "a\ud800\x00", b"\x00\xff", 1 + 2j,
    [], [1, [2, (3,)]], (), (1,), set(), {1, "a", (2, 3)}, frozenset({1}), {}, {"a": [1], 2: {"b": None}, (1, 2): 3},
]  # fmt: skip


def sent(value):
    return json.loads(json.dumps(encode(value)))


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_plain_values_come_back_as_they_are(value):
    back = decode(sent(value))
    assert back == value and type(back) is type(value)
    assert same(sent(value), sent(value))


def test_subclasses_come_back_as_the_plain_type_and_the_rest_not_at_all():
    point = namedtuple("point", "x y")(1, 2)
    for value, plain in ((Counter("aab"), {"a": 2, "b": 1}), (OrderedDict(b=1), {"b": 1}), (point, (1, 2))):
        assert decode(sent(value)) == plain and type(decode(sent(value))) is type(plain)
    for value in (iter([1]), object(), int, len, range(3), {1: 2}.keys()):
        assert sent(value)[0] == "object" and not same(sent(value), sent(value))


@pytest.mark.parametrize(
    ("returned", "expected", "atol", "equal"),
    [
        (1, 1.0, 0, True), (True, 1, 0, True), ([1], (1,), 0, False), ([1, 2], [2, 1], 0, False), ([1],
        [1, 1], 0, False),
        ("1", 1, 0, False), (None, 0, 0, False), (0, None, 0, False), ({1, 2}, {2, 1}, 0, True),
        ({1}, {1, 2}, 0, False),
        ({1}, frozenset({1}), 0, True), ({1}, [1], 0, False), ({"a": 1}, {"a": 2}, 0, False),
        ({"a": 1}, {"b": 1}, 0, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, 0, True), (1.0000005, 1.0, 0, True), (1.00001, 1.0, 0, False),
        ([1.0000005, 2.0], [1.0, 2.0], 0, True), ((1.0,), [1.0], 0, False), ([1.0], [1.0, 2.0], 0, False),
        (1.00005, 1.0, 1e-4, True), (1.0002, 1.0, 1e-4, False), (-1.0, 1.0, 1e-4, False), (11, 10, 0, False),
        (1e9 + 50, 1e9, 0, True), (1e9 + 200, 1e9, 0, False), (10**20 + 1, 10**20, 0, False),
        ({"a": 0.1 + 0.2}, {"a": 0.3}, 0, True),
        (math.nan, math.nan, 0, True), (math.nan, 1.0, 0, False), (1.0, math.nan, 0, False),
        (math.inf, math.inf, 0, True),
        (1e308, math.inf, 0, False), (math.inf, 1.0, 1e-4, False), (1 + 2j, 1 + 2.0000001j, 0, True),
        (2 + 1j, 1 + 2j, 0, False),
        (2**80, 2**80, 0, True), (2**80 + 1, 2**80, 0, False), (2**80, 2.0**80, 0, True), (2**80, 1.0, 0, False),
    ],
)  # fmt: skip
def test_equality_is_pythons_within_the_tolerance(returned, expected, atol, equal):
    assert same(sent(returned), sent(expected), atol) is equal


@pytest.mark.parametrize(
    "malformed",
    [["list"], ["list", 5], [], [[]], ["set", [["list", []]]], ["dict", [[1]]], ["int", "zz"], ["complex", "a"],
    ["nothing", 1], {}],
)  # fmt: skip
def test_malformed_values_equal_nothing(malformed):
    for value in VALUES:
        assert not same(malformed, sent(value))
    assert not same_elements(malformed, sent([1]))


def test_integers_that_have_no_decimal_form_are_compared():
    huge = 10**5000
    assert same(sent(huge), sent(huge)) and not same(sent(huge + 1), sent(huge)) and not same(sent(huge), sent(1.0))


def test_order_and_repetition_do_not_count_among_elements():
    assert same_elements(sent((3, 1, 1)), sent([1, 3])) and not same_elements(sent([1]), sent([1, 3]))


def test_colliding_keys_cannot_make_a_comparison_slow():
    colliding = [(2**61 - 1) * number for number in range(200_000)]
    for returned in (["set", colliding], ["dict", [[number, 1] for number in colliding]]):
        assert not same(returned, sent({1, 2})) and not same(returned, sent({1: 2}))
    assert not same_elements(["list", colliding], sent([1]))
