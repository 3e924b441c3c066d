"""The `looprl` command: dispatch, help, and how each kind of failure ends."""

import subprocess
import sys
import types

import pytest

from looprl import cli, runs
from looprl.errors import RecipeError, Terminated


@pytest.fixture
def fake_command(monkeypatch):
    """Register the command `fake` that calls what the test gives, with its arguments."""

    def register(run):
        module = types.ModuleType("fake_looprl_command")
        module.run = run
        monkeypatch.setitem(sys.modules, "fake_looprl_command", module)
        monkeypatch.setitem(cli.COMMANDS, "fake", cli.Command("fake_looprl_command", "a stand-in"))

    return register


def raising(error: BaseException):
    def run(argv):
        raise error

    return run


def test_command_gets_the_remaining_arguments_and_gives_the_exit_code(fake_command):
    seen = []
    fake_command(lambda argv: seen.append(argv) or 7)
    assert cli.main(["fake", "recipe.yaml", "--help"]) == 7
    assert seen == [["recipe.yaml", "--help"]]


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_lists_every_command_with_its_line(argv, capsys):
    assert cli.main(argv) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: looprl <command>")
    assert all(f"{name} " in text and command.help in text for name, command in cli.COMMANDS.items())
    assert {"train", "pretrain"} <= set(cli.COMMANDS)


def test_arguments_come_from_the_command_line_when_none_are_given(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["looprl", "--version"])
    assert cli.main() == 0
    assert capsys.readouterr().out.startswith("looprl ")


def test_unknown_command_names_the_nearest_one(capsys):
    assert cli.main(["trian"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("looprl: error: unknown command 'trian'") and "Did you mean 'train'?" in message


def test_flag_before_the_command_is_an_error(capsys):
    assert cli.main(["--num_loops", "3"]) == 2
    assert "--num_loops: the command comes first" in capsys.readouterr().err


def test_user_error_is_one_message_without_traceback(fake_command, capsys):
    fake_command(raising(RecipeError("mine.yaml: unknown key 'x'")))
    assert cli.main(["fake"]) == 2
    assert capsys.readouterr().err == "looprl fake: error: mine.yaml: unknown key 'x'\n"


def test_unexpected_error_keeps_its_traceback(fake_command):
    fake_command(raising(ValueError("a bug")))
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["fake"])


def test_interrupt_says_where_the_run_folder_is(fake_command, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "_latest_run_folder", None)

    def run(argv):
        runs.RunFolder.create(tmp_path / "run")
        raise KeyboardInterrupt

    fake_command(run)
    assert cli.main(["fake"]) == 130
    assert capsys.readouterr().err == f"looprl fake: interrupted; the run folder is {tmp_path / 'run'}\n"


def test_being_told_to_end_is_one_message_with_the_code_of_sigterm(fake_command, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "_latest_run_folder", tmp_path)
    fake_command(raising(Terminated("stopped by SIGTERM")))
    assert cli.main(["fake"]) == 143
    assert capsys.readouterr().err == f"looprl fake: stopped by SIGTERM; the run folder is {tmp_path}\n"


def test_a_full_disk_is_one_message_and_other_faults_of_the_system_keep_their_traceback(fake_command, capsys):
    def run(argv):
        with open("/dev/full", "w") as file:
            file.write("x")

    fake_command(run)
    assert cli.main(["fake"]) == 2
    error = capsys.readouterr().err
    assert "the disk is full" in error and "Traceback" not in error
    fake_command(raising(PermissionError(13, "no")))
    with pytest.raises(PermissionError):
        cli.main(["fake"])


def test_interrupt_before_there_is_a_run_folder_says_so(fake_command, capsys, monkeypatch):
    monkeypatch.setattr(runs, "_latest_run_folder", None)
    fake_command(raising(KeyboardInterrupt()))
    assert cli.main(["fake"]) == 130
    assert capsys.readouterr().err == "looprl fake: interrupted; no run folder was made yet\n"


def test_help_of_the_module_imports_no_heavy_library():
    code = (
        "import runpy, sys\n"
        "sys.argv = ['looprl', '--help']\n"
        "try:\n    runpy.run_module('looprl', run_name='__main__')\n"
        "except SystemExit as stop:\n    assert stop.code == 0, stop.code\n"
        "heavy = {'torch', 'transformers', 'trl', 'vllm', 'datasets'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: looprl <command>")
