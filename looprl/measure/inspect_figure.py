"""An inspection as one figure: six panels that print in black and white."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from looprl.measure.figures import drawn_as_png, line, new_figure
from looprl.measure.inspection import TOKEN_TOLERANCE, Inspection
from looprl.measure.policy_gradient import ALL, SAFE_COSINE
from looprl.measure.verdict import RESTING_RESIDUAL, rows_of

LOOP_LABEL = "loop r"


@drawn_as_png
def inspect_figure(inspection: Inspection) -> Figure:
    """Residual, convergence, likelihood, gradient fidelity, angle and variance."""
    figure, axes = new_figure(2, height=9.6, rows=3)
    for panel, draw in zip(axes, (_residual, _convergence, _likelihood, _fidelity, _angle, _variance), strict=True):
        draw(panel, inspection)
    for panel in axes:
        if panel.get_xlabel() == LOOP_LABEL:
            panel.axvline(
                inspection.num_loops, color="0.0", linestyle=":", linewidth=0.8, label=f"R = {inspection.num_loops}"
            )
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        # below the panel, where it hides no line whatever its course
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, columnspacing=1)
    return figure


def _residual(axes: Axes, inspection: Inspection) -> None:
    for name, label, style, marker in (
        ("residual_p90", "90 % of tokens are below", ":", "^"),
        ("residual_mean", "mean over tokens", "-", "o"),
        ("residual_median", "median", "--", "s"),
    ):
        _by_loop(axes, inspection, name, label, style, marker)
    axes.axhline(RESTING_RESIDUAL, color="0.0", linestyle="-.", linewidth=0.8, label="converged (mean)")
    axes.set_yscale("log")
    _label(axes, "How far one more loop moves the state", "residual |F(z) - z| / |z| (relative)")


def _convergence(axes: Axes, inspection: Inspection) -> None:
    loops = [row.loop for row in inspection.loops]
    shares = [100 * row.tokens_converging / inspection.tokens for row in inspection.loops]
    never, beyond = 100 * inspection.tokens_not_converging / inspection.tokens, loops[-1] + 2
    label = f"stays below {TOKEN_TOLERANCE}"
    axes.bar(loops, shares, color="0.7", edgecolor="0.0", label=label)
    axes.bar([beyond], [never], color="1.0", hatch="////", edgecolor="0.0", label=f"not within {loops[-1]} loops")
    axes.text(beyond, never, "never", ha="center", va="bottom", fontsize=8)
    axes.set_ylim(0, 112)
    _label(axes, "Loop from which on a token's residual is small", "share of tokens (%)")


def _likelihood(axes: Axes, inspection: Inspection) -> None:
    _by_loop(axes, inspection, "nll", "full sequence", "-", "o")
    for policy, value, marker in (("terminal", inspection.kv.terminal, "v"), ("per_loop", inspection.kv.per_loop, "^")):
        axes.plot(
            [inspection.num_loops], [value], linestyle="", marker=marker, markersize=8, color="0.0",
            markerfacecolor="none", label=f"decoding, {policy} KV",
        )  # fmt: skip
    _label(axes, "Likelihood of the tokens after the prompts", "negative log-likelihood (nats per token)")


def _fidelity(axes: Axes, inspection: Inspection) -> None:
    for estimator, start, style, marker in (
        ("reuse", "penultimate", "-", "o"),
        ("reuse", "endpoint", "--", "s"),
        ("recompute", "penultimate", ":", "^"),
    ):
        kept = [
            (row.neumann_steps, value)
            for row in rows_of(inspection, estimator, start)
            if (value := row.cosine_to_full[ALL]) is not None
        ]
        steps, values = [steps for steps, _ in kept], [value for _, value in kept]
        line(axes, steps, values, f"{estimator}, {start}", "0.0", style, marker)
    axes.axhline(SAFE_COSINE, color="0.0", linestyle="-.", linewidth=0.8, label=f"safe ({SAFE_COSINE})")
    _label(axes, "Gradient against full BPTT", "cosine (all parameters)")
    axes.set_xlabel("Neumann steps K")


def _angle(axes: Axes, inspection: Inspection) -> None:
    _by_loop(axes, inspection, "angle", "mean over tokens", "-", "o")
    axes.set_yscale("log")
    _label(axes, "Angle from one state to the next", r"angle between $z_r$ and $z_{r+1}$ (degrees)")


def _variance(axes: Axes, inspection: Inspection) -> None:
    _by_loop(axes, inspection, "state_variance", "mean over components", "-", "o")
    finite = [row.state_variance for row in inspection.loops if math.isfinite(row.state_variance)]
    axes.set_ylim(0, 1.1 * max(finite, default=1.0))
    _label(axes, "Variance of the state over tokens", "variance of $z_r$ (squared units of $z$)")


def _by_loop(axes: Axes, inspection: Inspection, name: str, label: str, style: str, marker: str) -> None:
    rows = inspection.loops
    line(axes, [row.loop for row in rows], [getattr(row, name) for row in rows], label, "0.0", style, marker)


def _label(axes: Axes, title: str, label: str) -> None:
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_xlabel(LOOP_LABEL)
    axes.set_ylabel(label)
