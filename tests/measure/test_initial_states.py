"""The gap between initial states is that of plain forward passes from them, over the real tokens of all batches."""

import pytest
import torch

from looprl.data.documents import batches_of
from looprl.measure.initial_states import start_gaps
from looprl.models.initial_state import drawn_states
from tests.measure.conftest import DOCUMENTS, PAD, LinearCore
from tests.published import random_published

LOOPS, SEED = 4, 5


@pytest.fixture
def model():
    return random_published("huginn", num_loops=2).double()


def starts(model, length):
    """z_0 of one row of that length, by name."""
    drawn = {f"drawn {i + 1}": drawn_states(model.config, SEED + i, length)[None].double() for i in (0, 1)}
    return {"zero": torch.zeros(1, length, model.config.hidden_size, dtype=torch.double), **drawn}


@torch.no_grad()
def test_gaps_are_those_of_rows_run_by_themselves(model, token_rows):
    batches = [*batches_of(DOCUMENTS, 2, PAD)]
    assert len(batches) == 2
    distances, gaps = {}, {}
    for ids, _, prompt_length in token_rows:
        ends = {}
        for name, start in starts(model, ids.shape[1]).items():
            output = model(ids, num_loops=LOOPS, initial_state=start)
            logps = output.logits.log_softmax(-1)[0, prompt_length - 1 : -1]
            ends[name] = output.state[0], logps.gather(-1, ids[0, prompt_length:, None])
        for pair in (("zero", "drawn 1"), ("zero", "drawn 2"), ("drawn 1", "drawn 2")):
            (a, a_logps), (b, b_logps) = (ends[name] for name in pair)
            distances.setdefault(pair, []).append((a - b).norm(dim=-1) / ((a.norm(dim=-1) + b.norm(dim=-1)) / 2))
            gaps.setdefault(pair, []).append((a_logps - b_logps).abs())
    found = start_gaps(model, batches, LOOPS, SEED)
    assert [(gap.first, gap.second) for gap in found] == list(distances)
    for gap in found:
        pair = gap.first, gap.second
        assert gap.distance == pytest.approx(float(torch.cat(distances[pair]).mean())) and gap.distance > 1e-3
        assert gap.logprob_gap_mean == pytest.approx(float(torch.cat(gaps[pair]).mean()))
        assert gap.logprob_gap_max == pytest.approx(float(torch.cat(gaps[pair]).max()))


def test_a_contracting_core_forgets_its_initial_state_at_its_own_rate(model, token_batch):
    model.model.core = LinearCore(0.5 * torch.eye(model.config.hidden_size, dtype=torch.double))
    near, far = (start_gaps(model, [token_batch], loops, SEED)[2].distance for loops in (21, 20))
    assert near / far == pytest.approx(0.5, rel=1e-3)


def test_a_family_of_a_single_initial_state_has_no_gaps(tiny_model, token_batch):
    assert start_gaps(tiny_model(), [token_batch], LOOPS, SEED) == ()
