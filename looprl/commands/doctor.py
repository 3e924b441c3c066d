"""looprl doctor: the versions and the machine, what is wrong with them, and what to do about it."""

import argparse

from looprl.measure.doctor import GB, VLLM_PACKAGES, Environment, findings
from looprl.measure.environment import describe_environment

WRONG = 1


def run(argv: list[str]) -> int:
    """Print the state of things; return 0 where all is well and 1 where something is wrong."""
    argparse.ArgumentParser(
        prog="looprl doctor",
        description="Check versions, vLLM, memory and disk. The exit code is 1 when something is wrong.",
        allow_abbrev=False,
    ).parse_args(argv)
    environment = describe_environment()
    print(describe(environment))
    found = findings(environment)
    print()
    if not found:
        print("Nothing is wrong.")
        return 0
    for number, finding in enumerate(found, start=1):
        print(f"{number}. {finding.problem}\n   -> {finding.remedy}")
    return WRONG


def describe(environment: Environment) -> str:
    """Return a line per pinned package, and one each for Python and the machine."""
    shown = [
        package for package in environment.pins if package not in VLLM_PACKAGES or package in environment.installed
    ]
    width = max(map(len, shown), default=0)
    memory = f"{environment.memory / GB:.1f} GB of memory ({environment.free_memory / GB:.1f} free)"
    return "\n".join(
        [
            f"looprl {environment.looprl or '(not installed as a package)'}, "
            f"Python {environment.python} ({environment.executable})",
            *(f"  {package:<{width}}  {environment.installed.get(package, 'missing')}" for package in shown),
            f"{environment.cores} CPU cores, {memory}, {environment.free_disk / GB:.0f} GB of disk free",
            f"CUDA devices: {', '.join(environment.cuda_devices) or 'none'}",
        ]
    )
