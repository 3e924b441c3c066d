"""What an inspection means: is the loop at rest, is terminal KV sharing safe, is reuse safe, from which state, which K.

The thresholds, all of them, with their reasons:

- `SAFE_COSINE` (.99): the cosine to full BPTT from which a gradient counts as faithful; training warns below it.
- `RESTING_RESIDUAL` (.05): the mean residual after R loops up to which the loop counts as converged. The twins of
  tests/data/twins, one pretrained with a depth prior and one without, have .011 and .41.
- `KV_DIFFERENCE` (.02 nats per token): a change of perplexity by 2 %. The difference between the two K/V policies must
  stay within by two standard errors to be safe, and exceed it by two to be unsafe: a short text shows neither, and
  one of fewer than `LEAST_KV_TOKENS` (50) tokens has no standard error to speak of.
- `ENDPOINT_GAP` (.02 nats): from the endpoint the policy is that of loop R + 1, and the gap goes into every ratio of
  policies. A tenth of the usual clip range of .2.
- `START_GAP` (.02 nats): from another initial state the policy is another one; the same size as `ENDPOINT_GAP`. The
  endpoints must not lie further apart than `RESTING_RESIDUAL` either.
- `DEPTH_GAIN` (.02 nats per token): the change of likelihood from which another number of loops is worth naming.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from looprl.measure.inspection import Inspection
from looprl.measure.policy_gradient import ALL, SAFE_COSINE
from looprl.measure.reuse import ReuseRow

RESTING_RESIDUAL = 0.05
KV_DIFFERENCE = 0.02
ENDPOINT_GAP = 0.02
START_GAP = 0.02
DEPTH_GAIN = 0.02
LEAST_KV_TOKENS = 50


@dataclass(frozen=True)
class Finding:
    """One question, whether the answer is a good one, and the answer in words."""

    question: str
    safe: bool
    answer: str


@dataclass(frozen=True)
class Verdict:
    """The findings, and the recipe keys that follow from them; no initial_state where the family has but one."""

    converges: Finding
    terminal_kv: Finding
    reuse_from_penultimate: Finding
    reuse_from_endpoint: Finding
    depth: Finding
    initial_state: Finding | None
    recipe: dict[str, Any]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them, in the order in which they are read."""
        reuse = (self.reuse_from_penultimate, self.reuse_from_endpoint)
        start = () if self.initial_state is None else (self.initial_state,)
        return (self.converges, *start, self.terminal_kv, *reuse, self.depth)


def judge(inspection: Inspection) -> Verdict:
    """Turn measurements into findings; a measurement that is not a number counts as a bad one."""
    penultimate, endpoint = (_reuse(inspection, start) for start in ("penultimate", "endpoint"))
    return Verdict(
        converges=_converges(inspection),
        terminal_kv=_terminal_kv(inspection),
        reuse_from_penultimate=penultimate,
        reuse_from_endpoint=endpoint,
        depth=_depth(inspection),
        initial_state=_initial_state(inspection) if inspection.initial_states else None,
        recipe=_recipe(inspection, penultimate.safe, endpoint.safe),
    )


def safe_steps(rows: Sequence[ReuseRow]) -> list[int]:
    """The K of the rows whose cosine to full BPTT is safe."""
    return [row.neumann_steps for row in rows if (row.cosine_to_full[ALL] or 0.0) >= SAFE_COSINE]


def rows_of(inspection: Inspection, estimator: str, replay_from: str) -> list[ReuseRow]:
    """The rows of one estimator from one state, by K."""
    return [row for row in inspection.reuse if (row.estimator, row.replay_from) == (estimator, replay_from)]


def _converges(inspection: Inspection) -> Finding:
    row, radius = inspection.after(inspection.num_loops), inspection.spectral_radius
    resting = row.residual_mean <= RESTING_RESIDUAL
    safe = resting and radius.median < 1
    answer = (
        f"{'Yes' if safe else 'No'}: after R = {row.loop} loops one more moves the state by "
        f"{_percent(row.residual_mean)} on average (converged: at most {_percent(RESTING_RESIDUAL)}), and J has a "
        f"spectral radius of {radius.median:.2f} (median; largest {radius.max:.2f})"
    )
    if radius.expanding:
        answer += f", 1 or more in {radius.expanding} of {radius.sequences} sequences"
    last = inspection.loops[-1]
    if not resting:
        settled = next((later for later in inspection.loops if later.residual_mean <= RESTING_RESIDUAL), None)
        answer += (
            f"; it would be converged after {settled.loop} loops"
            if settled is not None
            else f"; after {last.loop} loops it is still {_percent(last.residual_mean)}"
        )
    if not safe:
        answer += ". A depth prior in pretraining helps"
    return Finding("Does the loop converge?", safe, f"{answer}.")


def _initial_state(inspection: Inspection) -> Finding:
    apart = max(gap.distance for gap in inspection.initial_states)
    changed = max(gap.logprob_gap_mean for gap in inspection.initial_states)
    safe = all(
        gap.distance <= RESTING_RESIDUAL and gap.logprob_gap_mean <= START_GAP for gap in inspection.initial_states
    )
    answer = (
        f"{'Yes' if safe else 'No'}: from zero and from two drawn initial states the endpoints are up to "
        f"{_percent(apart)} apart (the same: at most {_percent(RESTING_RESIDUAL)}) and the log-probs {changed:.2g} "
        f"nats (at most {START_GAP}), on average over tokens"
    )
    if not safe:
        answer += ". Use the initial_state that the model was trained with, or more loops"
    return Finding("Is the endpoint the same whatever the initial state?", safe, f"{answer}.")


def _terminal_kv(inspection: Inspection) -> Finding:
    kv = inspection.kv
    margin = 2 * kv.standard_error
    enough = kv.tokens >= LEAST_KV_TOKENS
    safe = enough and abs(kv.difference) + margin <= KV_DIFFERENCE
    compared = (
        f"{kv.terminal:.4f} against {kv.per_loop:.4f} nats per token, a difference of {kv.difference:+.4f} "
        f"± {margin:.4f} (two standard errors; safe: within {KV_DIFFERENCE})"
    )
    if safe:
        answer = f"Yes: {compared}."
    elif enough and abs(kv.difference) - margin > KV_DIFFERENCE:
        answer = f"No: {compared}. Use kv_policy: per_loop, or pretrain under terminal KV sharing."
    else:
        answer = f"Not shown on {kv.tokens} tokens: {compared}. Give more text, or use kv_policy: per_loop."
    return Finding("Is terminal KV sharing safe?", safe, answer)


def _reuse(inspection: Inspection, start: str) -> Finding:
    rows = rows_of(inspection, "reuse", start)
    steps, best = safe_steps(rows), _best(rows)
    shown = f"cosine to full BPTT {_cosine(best)} at K = {best.neumann_steps}"
    gap = best.logprob_gap_mean
    faithful = start == "penultimate" or gap <= ENDPOINT_GAP
    said_gap = f"its log-probs are those of loop R + 1, off by {gap:.2g} nats on average (safe: {ENDPOINT_GAP})"
    if steps and faithful:
        first = next(row for row in rows if row.neumann_steps == steps[0])
        answer = (
            f"Yes, with neumann_steps: {_range(steps, rows)} (cosine to full BPTT {_cosine(first)} at {steps[0]}, "
            f"best {_cosine(best)} at {best.neumann_steps})"
        )
        answer += "." if start == "penultimate" else f"; {said_gap}."
    elif steps:
        answer = f"No: {said_gap}, though the gradient is faithful ({shown})."
    else:
        recomputed = _best(rows_of(inspection, "recompute", start))
        answer = (
            f"No: the best {shown} (safe: {SAFE_COSINE}), and with recomputed states {_cosine(recomputed)} at "
            f"K = {recomputed.neumann_steps}"
        )
        answer += "." if faithful else f"; {said_gap}."
    return Finding(f"Is reuse from the {start} state safe?", bool(steps) and faithful, answer)


def _depth(inspection: Inspection) -> Finding:
    row, best = inspection.after(inspection.num_loops), min(inspection.loops, key=lambda row: row.nll)
    last = inspection.loops[-1]
    gain = row.nll - best.nll
    safe = gain <= DEPTH_GAIN
    answer = f"{row.nll:.3f} nats per token at R = {row.loop}"
    if safe:
        answer = f"Yes: {answer}; no number of loops up to {last.loop} is better by more than {DEPTH_GAIN}."
    else:
        answer = f"No: {answer}, but {best.nll:.3f} at {best.loop} loops."
    return Finding("Is R a good number of loops?", safe, answer)


def _recipe(inspection: Inspection, penultimate: bool, endpoint: bool) -> dict[str, Any]:
    """The cheapest estimator that is safe: reuse, else recompute, else full BPTT."""
    found: list[tuple[str, str]] = [("reuse", "penultimate")] if penultimate else []
    found += [("reuse", "endpoint")] if endpoint else []
    found += [("recompute", "penultimate")]
    for estimator, start in found:
        steps = safe_steps(rows_of(inspection, estimator, start))
        if steps:
            return {"estimator": estimator, "replay_from": start, "neumann_steps": steps[0]}
    return {"estimator": "full"}


def _best(rows: Sequence[ReuseRow]) -> ReuseRow:
    return max(rows, key=lambda row: -1.0 if (cosine := row.cosine_to_full[ALL]) is None else cosine)


def _range(steps: Sequence[int], rows: Sequence[ReuseRow]) -> str:
    """The safe K in words; a series may be safe at few terms and not at many."""
    tried = [row.neumann_steps for row in rows if row.neumann_steps >= steps[0]]
    if list(steps) != tried or len(tried) == 1:
        return ", ".join(map(str, steps))
    return f"{steps[0]} or more, up to the {tried[-1]} that were tried"


def _cosine(row: ReuseRow) -> str:
    value = row.cosine_to_full[ALL]
    return "undefined" if value is None else f"{value:.4f}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
