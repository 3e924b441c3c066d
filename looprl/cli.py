"""The `looprl` command: `looprl <command> [RECIPE] [--key value ...]`.

Each command is a module with `run(argv) -> int`, imported only when asked for, so `looprl --help` is quick.
"""

import errno
import importlib
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from looprl.errors import Terminated, UserError
from looprl.suggest import did_you_mean

USER_ERROR = 2
INTERRUPTED = 130
TERMINATED = 143


class Command(NamedTuple):
    """Where a command lives and the one line that `looprl --help` shows for it."""

    module: str
    help: str


COMMANDS = {
    "train": Command("looprl.commands.train", "train a looped model by reinforcement learning"),
    "eval": Command("looprl.commands.eval", "measure pass@k and majority votes on held-out prompts at several depths"),
    "gradients": Command("looprl.commands.gradients", "compare every estimator's gradient with full BPTT"),
    "bench": Command("looprl.commands.bench", "time every estimator, and an RL step beside stock TRL"),
    "inspect": Command(
        "looprl.commands.inspect", "say whether a looped model converges, and whether reuse is safe on it"
    ),
    "ablate": Command("looprl.commands.ablate", "train arms that differ in a few keys, on several seeds, and compare"),
    "pretrain": Command("looprl.commands.pretrain", "train a looped model on next tokens"),
    "rewards": Command("looprl.commands.rewards", "try a reward on given completions, without a model"),
    "plan": Command("looprl.commands.plan", "say what memory a training recipe needs, without loading its model"),
    "models": Command("looprl.commands.models", "list the looped-model families and what each supports"),
    "export": Command("looprl.commands.export", "write a run's model as a plain transformers folder"),
    "recipes": Command("looprl.commands.recipes", "list the recipes that come with looprl, or copy one to edit"),
    "doctor": Command("looprl.commands.doctor", "say what is wrong with this installation or machine, and what to do"),
}

_OF_THE_DISK = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.EROFS: "the disk is read-only",
}


def main(argv: list[str] | None = None) -> int:
    """Run one command and return the process's exit code.

    A UserError is printed as one message (code 2), Ctrl-C says where the run folder is (code 130), so does SIGTERM
    once a checkpoint is saved (code 143), a full disk is an error like a UserError, and any other exception passes
    through with its traceback.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0
    if arguments[0] == "--version":
        print(f"looprl {_version()}")
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        return _report(f"looprl: error: {_unknown_command(name)}", USER_ERROR)
    try:
        return int(importlib.import_module(COMMANDS[name].module).run(rest))
    except UserError as error:
        return _report(f"looprl {name}: error: {error}", USER_ERROR)
    except Terminated as ended:
        return _report(f"looprl {name}: {ended}; {_where_the_run_is()}", TERMINATED)
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        problem = _OF_THE_DISK[error.errno]
        return _report(f"looprl {name}: error: {problem}: {error}; {_where_the_run_is()}", USER_ERROR)
    except KeyboardInterrupt:
        return _report(f"looprl {name}: interrupted; {_where_the_run_is()}", INTERRUPTED)


def _report(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: looprl <command> [RECIPE] [--key value ...]",
            "",
            "RL post-training for looped language models.",
            "",
            "commands:",
            *lines,
            "",
            "looprl <command> --help lists a command's keys; looprl --version prints the version.",
        ]
    )


def _version() -> str:
    try:
        return version("looprl")
    except PackageNotFoundError:
        return "(not installed as a package)"


def _unknown_command(name: str) -> str:
    if name.startswith("-"):
        return f"unknown flag {name}: the command comes first. See `looprl --help`."
    return f"unknown command {name!r}.{did_you_mean(name, COMMANDS)} The commands are {', '.join(COMMANDS)}."


def _where_the_run_is() -> str:
    from looprl.runs import latest_run_folder

    folder = latest_run_folder()
    return f"the run folder is {folder}" if folder else "no run folder was made yet"
