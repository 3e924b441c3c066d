"""The plan of a run's memory, as tables and as the content of a JSON file."""

from dataclasses import asdict, dataclass
from typing import Any

from looprl.measure.cells import Cells
from looprl.measure.memory_plan import Held

KV_NAMES = {"terminal": "keys and values, terminal", "per_loop": "keys and values, per loop"}


@dataclass(frozen=True)
class Plan:
    """What `looprl plan` found. Sizes are in bytes; held: of one process.

    weights: the precision that they load in; computes_in: that of training. completions: of a process's rollout.
    kv_per_token: by K/V policy. recorded: a micro-batch's activations by estimator.
    """

    model: str
    parameters: int
    weights: str
    computes_in: str
    num_loops: int
    kv_policy: str
    processes: int
    zero_stage: int
    window: int
    completions: int
    micro_batch: int
    kv_per_token: dict[str, int]
    state_per_token: int
    recorded: dict[str, int]
    held: list[Held]
    remarks: list[str]

    @property
    def together(self) -> Held:
        """The sums over what is held."""
        return Held("together", sum(each.device for each in self.held), sum(each.host for each in self.held))

    def content(self) -> dict[str, Any]:
        """For a JSON file."""
        together = self.together._asdict()
        return {**asdict(self), "held": [each._asdict() for each in self.held], "together": together}


def headline(plan: Plan) -> tuple[str, str]:
    """What is planned for, in two lines."""
    processes = f"{plan.processes} process{'es' if plan.processes > 1 else ''}"
    zero = f" under ZeRO-{plan.zero_stage}" if plan.zero_stage else ""
    return (
        f"{plan.model}: {plan.parameters:,} parameters in {plan.weights}, computed in {plan.computes_in}; "
        f"{processes}{zero}",
        f"{plan.completions} completions in a rollout of each process, {plan.micro_batch} in a micro-batch, at most "
        f"{plan.window} tokens each with the prompt; R = {plan.num_loops}, {plan.kv_policy} K/V",
    )


def held_cells(plan: Plan) -> Cells:
    """What a process keeps, with the sums, and what all processes keep."""
    rows = [
        (name, [shown_bytes(device), shown_bytes(host), shown_bytes(plan.processes * (device + host))])
        for name, device, host in (*plan.held, plan.together)
    ]
    return Cells("memory of a process", "", ["device", "host", "all processes"], rows)


def token_cells(plan: Plan) -> Cells:
    """Keys and values under both policies, and the state, of one token."""
    rows = [
        (KV_NAMES[policy] + (" (this recipe)" if policy == plan.kv_policy else ""), [shown_bytes(size)])
        for policy, size in plan.kv_per_token.items()
    ]
    rows.append(("recurrent state", [shown_bytes(plan.state_per_token)]))
    return Cells("a token of a rollout", "", ["bytes"], rows)


def recorded_cells(plan: Plan) -> Cells:
    """Activations of a micro-batch by estimator."""
    rows = [(f"activations, {name}", [shown_bytes(size)]) for name, size in plan.recorded.items()]
    return Cells("a micro-batch, until its backward pass", "", ["bytes"], rows)


def shown_bytes(size: int) -> str:
    """A size in the largest unit of 1024 that it fills, with three digits."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    digits = 0 if unit == "B" or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"
