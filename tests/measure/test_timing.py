"""Calls are compared in interleaved rounds, and memory is what a call's tensors held at once."""

import pytest
import torch

from looprl.measure.timing import Seconds, interleaved_seconds, peak_bytes


def test_repeats_alternate_between_the_calls_after_one_untimed_round():
    order = []
    interleaved_seconds({name: (lambda name=name: order.append(name)) for name in "ab"}, repeats=3, device="cpu")
    assert "".join(order) == "ab" + "ababab"


def test_seconds_are_the_median_and_the_range():
    assert Seconds.of([3.0, 1.0, 2.0]) == Seconds(median=2.0, fastest=1.0, slowest=3.0)


def test_peak_is_what_is_held_at_once_not_what_was_allocated_in_all():
    mebibyte = 2**18  # floats

    def one_after_another():
        for _ in range(5):
            torch.ones(mebibyte)

    def together():
        return [torch.ones(mebibyte) for _ in range(5)]

    assert peak_bytes(one_after_another, "cpu") == pytest.approx(2**20, rel=0.01)
    assert peak_bytes(together, "cpu") == pytest.approx(5 * 2**20, rel=0.01)


def test_what_was_there_before_the_call_does_not_count():
    there = torch.ones(2**20)
    assert peak_bytes(lambda: there.add_(1), "cpu") < 2**12
