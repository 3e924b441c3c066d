"""looprl models: the looped-model families, what each supports, and why not where it does not."""

from argparse import ArgumentParser

from looprl.gradients.log_probs import LOOP_WEIGHTS
from looprl.models import FAMILIES, LoopedForCausalLM
from looprl.models.registry import REFUSED


def run(argv: list[str]) -> int:
    """Print a block for each family, then the loops that are refused, with the reasons."""
    ArgumentParser(
        prog="looprl models", description="The looped-model families that looprl loads, and what each supports."
    ).parse_args(argv)
    for model_class in FAMILIES.values():
        print(model_class.config_class.model_type)
        for name, value in _facts(model_class):
            print(f"  {name:<14}  {value}")
        print()
    print("refused, because one replayed loop would not stand for all")
    for name, reason in REFUSED.items():
        print(f"  {name:<14}  {reason}")
    return 0


def _facts(model_class: type[LoopedForCausalLM]) -> list[tuple[str, str]]:
    family, default_kv = model_class.FAMILY, model_class.config_class().kv_policy
    supports = {
        "reuse": family.no_reuse,
        "terminal KV": family.no_terminal_kv,
        "per-loop KV": family.no_per_loop_kv,
        "exit gate": family.no_exit_gate,
    }
    weights = [each for each in LOOP_WEIGHTS if each != "exit" or not family.no_exit_gate]
    default = {"terminal": "terminal KV", "per_loop": "per-loop KV"}[default_kv]
    return [
        ("family", family.title),
        ("for example", ", ".join(family.examples)),
        ("loop", family.loop),
        *(
            (name, f"no: {no}" if no else "yes, the default" if name == default else "yes")
            for name, no in supports.items()
        ),
        ("RLTT", f"yes, with loop_weights {', '.join(weights)}"),
        *(("not trained", f"{name}*: {reason}") for name, reason in family.untrained.items()),
        *(("full BPTT only", f"{name}*: {reason}") for name, reason in family.unreplayed.items()),
    ]
