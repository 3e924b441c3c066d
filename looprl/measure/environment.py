"""Describe this installation and machine for doctor, without importing anything that may be broken."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from looprl.measure.doctor import VLLM_PACKAGES, Environment
from looprl.shipped import shipped_folder

_IMPORT_SECONDS = 180
_LONGEST_BUILD = 1800  # seconds; the slowest extension of DeepSpeed takes about 300
_REPORT = "looprl-doctor:"
_TORCH = f"""
import json, torch
names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
print({_REPORT!r} + json.dumps(names))
"""
_VLLM = f"""
from vllm import LLM
print({_REPORT!r} + "[]")
"""


def describe_environment() -> Environment:
    """Look at the installed packages and the machine; torch and vLLM are imported in processes of their own."""
    pins, required = _requirements()
    installed = {package: found for package in (*pins, *required, *VLLM_PACKAGES) if (found := _version(package))}
    cuda_devices, torch_error = _try_import(_TORCH) if "torch" in installed else ([], None)
    vllm_there = any(package in installed for package in VLLM_PACKAGES)
    _, vllm_error = _try_import(_VLLM) if vllm_there else ([], None)
    memory, free_memory = _memory()
    return Environment(
        looprl=_version("looprl"),
        python=platform.python_version(),
        executable=sys.executable,
        requires_python=_requires_python(),
        pins=pins,
        required=required,
        installed=installed,
        torch_error=torch_error,
        vllm_error=vllm_error,
        cores=len(os.sched_getaffinity(0)),
        memory=memory,
        free_memory=free_memory,
        free_disk=shutil.disk_usage(Path.cwd()).free,
        cuda_devices=tuple(cuda_devices),
        stale_locks=tuple(_stale_locks()),
        lock_list=str(shipped_folder() / "requirements" / "cpu.txt"),
    )


def _requirements() -> tuple[dict[str, str], tuple[str, ...]]:
    """Return looprl's exact pins and the names of its other requirements; extras count only where they pin."""
    try:
        lines = requires("looprl") or []
    except PackageNotFoundError:
        return {}, ()
    pins, required = {}, []
    for line in lines:
        requirement, _, marker = line.partition(";")
        name = re.match(r"[\w.-]+", requirement.strip())
        pin = re.search(r"==\s*([^\s,]+)", requirement)
        if name and pin:
            pins[name[0]] = pin[1]
        elif name and not marker.strip():
            required.append(name[0])
    return pins, tuple(required)


def _requires_python() -> str:
    try:
        return metadata("looprl")["Requires-Python"] or ""
    except (PackageNotFoundError, KeyError):
        return ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _try_import(code: str) -> tuple[list[str], str | None]:
    """Run code that prints a JSON list after a mark; return the list, or why there is none."""
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    try:
        # -P: a torch.py in the working directory is not torch
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            env=os.environ | quiet,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_IMPORT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return [], f"it was not done after {_IMPORT_SECONDS} s"
    for line in done.stdout.splitlines():
        if done.returncode == 0 and line.startswith(_REPORT):
            return json.loads(line.removeprefix(_REPORT)), None
    if done.returncode < 0:
        return [], f"the process died of signal {-done.returncode}"
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return [], said[-1] if said else f"exit code {done.returncode}"


def _memory() -> tuple[int, int]:
    """Return the bytes of memory in all and those still to be had, within the container's limit."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    memory, free = sizes["MemTotal"], sizes["MemAvailable"]
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        allowed, used = (_number(Path("/sys/fs/cgroup", file)) for file in (limit, usage))
        if allowed is not None and allowed < memory:
            memory, free = allowed, min(free, allowed - (used or 0))
    return memory, free


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _stale_locks() -> list[str]:
    """Return the locks of torch's extension builds that are older than any build takes."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cache / "torch_extensions")
    oldest = time.time() - _LONGEST_BUILD
    return sorted(str(lock) for lock in folder.glob("**/lock") if lock.is_file() and lock.stat().st_mtime < oldest)
