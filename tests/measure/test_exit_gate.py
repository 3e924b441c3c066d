"""From the gate's logits of single tokens to a table of depths."""

import pytest
import torch

from looprl.measure.exit_gate import mean_exit_gate, read_exit_gate, with_depths
from looprl.models.exit_gate import exit_distribution, exit_places, state_at_exit
from looprl.rollout.record import RolloutRecord

HALF, NEVER, ALWAYS = 0.0, -50.0, 50.0


def record_of(gate, kind="gate", prompt=2):
    """Three loops, four wide."""
    states = torch.nn.functional.pad(torch.tensor(gate), (0, 1))
    count = len(states) - prompt + 1
    logprobs = torch.zeros(count)
    return RolloutRecord((1,) * prompt, (2,) * count, logprobs, states, kind, 3, "per_loop", 0, "length")


def test_the_gate_is_read_where_it_predicted_the_completion():
    record = record_of([[ALWAYS] * 3, [HALF, HALF, ALWAYS], [NEVER, HALF, NEVER]])
    found = read_exit_gate(record)
    assert found.probabilities == pytest.approx([0.25, (0.25 + 0.5) / 2, (0.25 + 0.5) / 2])
    assert found.loop == 3
    assert read_exit_gate(record, 0.5).loop == pytest.approx((1 + 2) / 2)
    assert read_exit_gate(record, 0.7).loop == pytest.approx((2 + 3) / 2)


def test_a_record_of_states_tells_of_no_gate():
    with pytest.raises(ValueError, match="penultimate states tells of no gate"):
        read_exit_gate(record_of([[HALF] * 3] * 2, kind="penultimate"))


def test_a_token_stops_where_the_probabilities_sum_to_the_threshold_and_else_at_the_last_loop():
    probabilities = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.2, 0.2, 0.59]])
    assert exit_places(probabilities, 0.5).tolist() == [0, 2, 2]
    assert exit_places(probabilities, 0.1).tolist() == [0, 0, 0]
    assert exit_places(probabilities, 0.2).tolist() == [0, 1, 0]
    assert exit_places(probabilities, 1.0).tolist()[2] == 2  # rounding may leave the sum below 1
    gate = torch.tensor([[HALF, HALF, HALF], [NEVER, ALWAYS, HALF], [NEVER, NEVER, NEVER]])
    torch.testing.assert_close(exit_distribution(gate)[0], torch.tensor([0.5, 0.25, 0.25]))
    states = torch.arange(9.0).reshape(3, 3, 1).expand(3, 3, 2)
    assert state_at_exit(states, gate, 0.5)[:, 1].tolist() == [0, 4, 8]


def test_means_are_over_tokens():
    rows = [
        {"tokens": 1, "exit_probabilities": [1.0, 0.0], "exit_loop": 1.0},
        {"tokens": 3, "exit_probabilities": [0.2, 0.8], "exit_loop": 2.0},
    ]
    found = mean_exit_gate(rows)
    assert found["exit_probabilities"] == pytest.approx([0.4, 0.6]) and found["exit_loop"] == pytest.approx(1.75)
    assert mean_exit_gate([{"tokens": 1}]) == {}


def test_each_depth_has_the_deepest_row_s_share_of_it_whatever_the_order():
    def row(num_loops, probabilities, threshold=None, task="a"):
        return dict(task=task, num_loops=num_loops, exit_probabilities=probabilities, exit_threshold=threshold)

    rows = [
        row(3, [0.5, 0.2, 0.3]),
        row(1, [1.0]),
        row(2, [0.6, 0.4]),
        row(3, [0.1, 0.1, 0.8], threshold=0.5),
        row(1, [1.0], task="b"),
        dict(task="c", num_loops=2),
    ]
    three, one, two, early, other, gateless = with_depths(rows)
    assert [three["exit_probability"], one["exit_probability"], two["exit_probability"]] == [0.3, 0.5, 0.2]
    assert [three["exit_cdf"], one["exit_cdf"], two["exit_cdf"]] == pytest.approx([1, 0.5, 0.7])
    assert [each["expected_exit_loop"] for each in (three, one, two)] == pytest.approx([1.8, 1, 1.4])
    assert early["expected_exit_loop"] == pytest.approx(2.7) and "exit_cdf" not in early
    assert other["exit_probability"] == 1 and gateless == rows[-1]
