"""report.html: one run in one file, made from the files of its folder alone.

What an interrupted run did not write is named in the report.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from looprl.measure import plots
from looprl.measure.page import configuration, figure, inline, notes, number_table, page, section, shown, text
from looprl.measure.pass_at_k import wilson_interval
from looprl.measure.plots import Rate, series
from looprl.measure.policy_gradient import SAFE_COSINE
from looprl.measure.run_files import RunFiles, read_run
from looprl.measure.summary import phase_seconds

REPORT_FILE = "report.html"
COMPLETIONS_SHOWN = 12
_HIGHLIGHTS = (
    *("model", "dataset", "reward", "estimator", "replay_from", "neumann_steps", "num_loops"),
    *("learning_rate", "num_generations", "per_device_train_batch_size", "seed"),
)


def write_report(run_folder: Path) -> Path:
    """Write `report.html` into the run folder and return its path.

    Every file of the folder may be missing or cut short; the report says which. The same files give the same report.
    """
    target = Path(run_folder) / REPORT_FILE
    target.write_text(_page(read_run(Path(run_folder))), encoding="utf-8")
    return target


def _page(run: RunFiles) -> str:
    steps = [row["step"] for row in run.metrics if isinstance(row.get("step"), int)]
    before = _rate(run.summary.get("pass_at_1_before"), run.before, run.summary.get("n"), 0)
    after = _rate(run.summary.get("pass_at_1_after"), run.after, run.summary.get("n"), max(steps, default=0))
    settings = {key: value for key, value in run.config.items() if key != "versions"}
    sections = [
        _duration(run, steps),
        notes(run.notes),
        section("Result", _headline(run, before, after) + _facts(run.config)),
        section("Reward", _reward(run)),
        section("pass@1 on held-out prompts", _pass_rate(run, before, after)),
        section("Where the time went", _times(run)),
        section("Sampler and replay", _gap(run)),
        _control(run),
        section("Completion length", _lengths(run)),
        section("Completions before and after", _completions(run)),
        configuration(settings) if settings else section("Configuration", "<p>Not known.</p>"),
        section("Versions", _versions(run.config)),
    ]
    return page(f"looprl run {run.name}", sections)


def _duration(run: RunFiles, steps: Sequence[int]) -> str:
    seconds = run.summary.get("seconds")
    if run.summary and isinstance(seconds, int | float):
        return f"<p>{run.summary.get('steps')} optimizer steps in {seconds:.0f} s.</p>"
    return f"<p>This run did not reach its end; its last logged step is {max(steps, default=0)}.</p>"


def _rate(rate: Any, rows: Sequence[Mapping[str, Any]], n: Any, step: int) -> tuple[Rate, int] | None:
    """pass@1 with its n: n from the judged rows where there are any, as the summary's n is that of the last one."""
    judged = [row["reward"] for row in rows if row.get("reward") is not None]
    count = len(judged) or (n if isinstance(n, int) else 0)
    if rate is None and judged:
        rate = sum(value == 1 for value in judged) / len(judged)
    if not isinstance(rate, int | float) or not 0 <= rate <= 1:
        return None
    return Rate(step, rate, wilson_interval(rate, count) if count else None), count


def _headline(run: RunFiles, before: tuple[Rate, int] | None, after: tuple[Rate, int] | None) -> str:
    rows: list[tuple[str, list[str]]] = []
    transfer = ""
    results = {"before training": before, "after training": after}
    if "transfer_n" in run.summary:
        transfer = " Transfer is the same on a second task, which is not trained on."
        for when in ("before", "after"):
            value, n = run.summary.get(f"transfer_pass_at_1_{when}"), run.summary["transfer_n"]
            results[f"transfer, {when} training"] = _rate(value, (), n, 0)
    for name, measured in results.items():
        if measured is None:
            rows.append((name, ["not measured"]))
            continue
        rate, n = measured
        interval = "-" if rate.interval is None else f"{rate.interval[0]:.3f} to {rate.interval[1]:.3f}"
        rows.append((name, [f"{rate.value:.3f}", interval, str(n or "-")]))
    return (
        number_table(("pass@1", "95 % interval", "n"), rows, "headline")
        + "<p>pass@1 is the share of n held-out prompts whose one sampled completion has reward 1; the interval is "
        f"Wilson's.{transfer}</p>"
    )


def _facts(config: Mapping[str, Any]) -> str:
    facts = [f"{key}: {shown(inline(config[key]))}" for key in _HIGHLIGHTS if config.get(key) is not None]
    return f"<p>{'; '.join(facts)}.</p>" if facts else ""


def _reward(run: RunFiles) -> str:
    steps, values = series(run.metrics, "reward")
    alt = (
        f"Mean reward from {values[0]:.3f} at step {steps[0]} to {values[-1]:.3f} at step {steps[-1]}" if steps else ""
    )
    return figure(plots.reward_curve(run.metrics), alt, "Mean reward of the completions sampled in each step.")


def _pass_rate(run: RunFiles, before: tuple[Rate, int] | None, after: tuple[Rate, int] | None) -> str:
    n = next((measured[1] for measured in (after, before) if measured), 0)
    rates = {0: before[0]} if before else {}
    for step, value in zip(*series(run.metrics, "eval_pass_at_1"), strict=True):
        rates[step] = Rate(step, value, wilson_interval(value, n) if n and 0 <= value <= 1 else None)
    if after:
        rates[after[0].step] = after[0]
    points = [rates[step] for step in sorted(rates)]
    alt = "pass@1 " + ", ".join(f"{rate.value:.3f} at step {rate.step}" for rate in points)
    note = "The same held-out prompts each time, one sampled completion for each."
    if len(points) <= 2:
        note += " With eval_every: N in the recipe it is measured every N steps too."
    return figure(plots.pass_rate_curve(points), alt, note)


def _times(run: RunFiles) -> str:
    totals = phase_seconds(
        {key: value for key, value in row.items() if isinstance(value, int | float)} for row in run.metrics
    )
    everything = sum(totals.values())
    alt = "Seconds by phase: " + ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in totals.items())
    note = f"Seconds of each step by phase, and in all ({everything:.1f} s in the logged steps)."
    return figure(plots.phase_times(run.metrics, totals), alt, note)


def _gap(run: RunFiles) -> str:
    _, gaps = series(run.metrics, "replay/logprob_gap_max")
    _, residuals = series(run.metrics, "replay/residual")
    alt = "Log-prob gap and residual by step"
    alt += f"; the largest gap is {max(gaps):.2g} nats" if gaps else ""
    alt += f"; the last residual is {residuals[-1]:.2g}" if residuals else ""
    note = (
        "Left out where it is exactly 0. The gap is between the trainer's replay and the rollout engine, over the "
        "sampled tokens; the residual is how far the replayed loop moves the state z, relative to its size."
    )
    return figure(plots.replay_gap(run.metrics), alt, note)


def _control(run: RunFiles) -> str:
    steps, cosines = series(run.metrics, "control/cosine_to_full")
    if not steps:
        return ""
    alt = f"Cosine to full BPTT {min(cosines):.6f} at the least, {cosines[-1]:.6f} at step {steps[-1]}"
    warning = ""
    if min(cosines) < SAFE_COSINE:
        at = steps[cosines.index(min(cosines))]
        warning = notes([f"At step {at} the gradient's cosine to full BPTT was {min(cosines):.4f}: it is not safe."])
    caption = (
        "The gradient of a micro-batch beside that of full BPTT; recompute's has states of the trainer's own, so that "
        "the lines part by what reusing the rollout's states costs."
    )
    return section("Control: the gradient beside full BPTT", warning + figure(plots.control(run.metrics), alt, caption))


def _lengths(run: RunFiles) -> str:
    limit = run.config.get("max_completion_length")
    steps, values = series(run.metrics, "completions/mean_length")
    alt = f"Mean length from {values[0]:.1f} to {values[-1]:.1f} tokens" if steps else ""
    drawing = plots.completion_lengths(run.metrics, limit if isinstance(limit, int) else None)
    return figure(drawing, alt, "Tokens of the completions sampled in each step.")


def _completions(run: RunFiles) -> str:
    if not run.before:
        return "<p>No held-out completions were kept.</p>"
    rows = ""
    for number, old in enumerate(run.before[:COMPLETIONS_SHOWN]):
        new = run.after[number] if number < len(run.after) else None
        answer = old.get("answer")
        asked = text(old.get("prompt"))
        asked += f'<span class="verdict">answer:</span>{text(answer)}' if answer is not None else ""
        rows += f"<tr><td>{asked}</td><td>{_sample(old)}</td><td>{_sample(new) if new else 'not measured'}</td></tr>"
    head = "".join(f'<th scope="col">{name}</th>' for name in ("prompt", "before", "after"))
    shown = min(len(run.before), COMPLETIONS_SHOWN)
    return (
        f'<table class="samples"><caption>The first {shown} of {len(run.before)} held-out prompts.</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _sample(row: Mapping[str, Any]) -> str:
    reward = row.get("reward")
    verdict = "not judged" if reward is None else f"reward {shown(inline(reward))}"
    return f'{text(row.get("completion"))}<span class="verdict">{verdict}</span>'


def _versions(config: Mapping[str, Any]) -> str:
    versions = config.get("versions")
    if not isinstance(versions, dict) or not versions:
        return "<p>Not known.</p>"
    rows = (
        f'<tr><th scope="row">{shown(str(name))}</th><td>{shown(str(version))}</td></tr>'
        for name, version in versions.items()
    )
    return f"<table><tbody>{''.join(rows)}</tbody></table>"
