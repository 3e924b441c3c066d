"""The step meter adds, averages and keeps maxima, and starts anew after each hand-over."""

import json
import time

import pytest

from looprl.measure.meter import StepMeter


def test_counts_add_means_are_weighted_and_maxima_are_kept():
    meter = StepMeter()
    for total, weight in ((2.0, 1), (4.0, 3)):
        meter.count("dropped/empty", 2)
        meter.mean("gap", total, weight)
        meter.maximum("worst", -total)
    assert meter.flush() == {"dropped/empty": 4, "gap": 1.5, "worst": -2.0}
    assert meter.flush() == {}


def test_a_phase_is_timed_also_when_it_fails():
    meter = StepMeter()
    with meter.phase("rollout"):
        time.sleep(0.02)
    with pytest.raises(RuntimeError), meter.phase("rollout"):
        time.sleep(0.02)
        raise RuntimeError
    assert meter.seconds() == pytest.approx(meter.flush()["time/rollout"])
    assert meter.seconds() == 0


def test_a_mean_over_nothing_is_not_reported():
    meter = StepMeter()
    meter.mean("gap", 0.0, 0)
    assert "gap" not in meter.flush()


def test_what_is_saved_and_restored_goes_on_as_if_it_had_not_been():
    whole, first, second = StepMeter(), StepMeter(), StepMeter()
    for meter in (whole, first):
        meter.count("n", 2)
        meter.mean("gap", 2.0, 1)
        meter.maximum("worst", 3.0)
    second.count("left over", 1)
    second.restore(json.loads(json.dumps(first.state())))
    for meter in (whole, second):
        meter.count("n", 1)
        meter.mean("gap", 4.0, 3)
        meter.maximum("worst", 1.0)
    assert second.flush() == whole.flush() == {"n": 3, "gap": 1.5, "worst": 3.0}
