"""Reward functions: found by `FILE.py:FUNCTION`, and checked every time they are called.

A reward has TRL's signature: `def reward(prompts, completions, <dataset columns>, **kwargs)`, all passed by
keyword, and returns one number per completion. None stands for "cannot be judged": such a completion is left
out of training, and counted in the metric `dropped/unscorable`, unless another reward judges it. Anything else that
is not a finite number is an error.
"""

import functools
import hashlib
import importlib.util
import inspect
import math
import numbers
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from looprl.errors import UserError
from looprl.shipped import shipped_folder
from looprl.suggest import did_you_mean

Reward = Callable[..., list[float | None]]

# The trainer calls a reward with these keywords of its own, beside the dataset's columns.
KEYWORDS_OF_TRAINER = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")

# What a reward's file may define beside its rewards; see `final_answers`.
FINAL_ANSWER = "final_answer"


class RewardError(UserError):
    """A reward cannot be loaded, failed, or returned something that is not a reward."""


def load_rewards(specs: str | Sequence[str]) -> list[Reward]:
    """Load one reward or several, each checked and each with a `__name__` of its own.

    TRL names its metrics by them. Functions that share a name are told apart by their file:
    `gsm8k.accuracy`, `arithmetic.accuracy`.

    Raises:
        RewardError: as `load_reward`, or no reward at all, or the same one twice.
    """
    specs = [specs] if isinstance(specs, str) else list(specs)
    if not specs:
        raise RewardError("no reward is named; give at least one FILE.py:FUNCTION, such as rewards/gsm8k.py:accuracy")
    for spec, times in Counter(specs).items():
        if times > 1:
            raise RewardError(f"reward {spec} is named {times} times; name it once and set reward_weights instead")
    rewards = [load_reward(spec) for spec in specs]
    short = [reward.__name__ for reward in rewards]
    with_stem = [f"{Path(_split_spec(spec)[0]).stem}.{name}" for spec, name in zip(specs, short, strict=True)]
    for index, reward in enumerate(rewards):
        if short.count(short[index]) > 1:
            unique = with_stem.count(with_stem[index]) == 1
            reward.__name__ = with_stem[index] if unique else specs[index]
    return rewards


def load_reward(spec: str) -> Reward:
    """Load the function that `FILE.py:FUNCTION` names, already `checked`.

    A relative path is looked for in the working directory, then among the files that come with looprl.

    Raises:
        RewardError: a malformed name, no such file, a file that fails to import, no such function, something
            that cannot be called, an async function, or one that does not take `**kwargs`.
    """
    file, name = _split_spec(spec)
    path = _find(file)
    module = _import(path)
    if not hasattr(module, name):
        functions = _functions(module)
        raise RewardError(
            f"{path} has no function {name!r}; its functions: {', '.join(functions) or 'none'}."
            + did_you_mean(name, functions)
        )
    reward = getattr(module, name)
    if not callable(reward):
        raise RewardError(f"{name} in {path} is of type {type(reward).__name__}, not a function")
    if inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(type(reward).__call__):
        raise RewardError(
            f"{name} in {path} is an async function; looprl calls rewards synchronously, so use a plain one"
        )
    if not _takes_any_keyword(reward):
        raise RewardError(
            f"{name} in {path} does not take **kwargs; a reward is called with all columns of the dataset, "
            f"so write def {name}(prompts, completions, <the columns it uses>, **kwargs)"
        )
    loaded = checked(reward)
    loaded.final_answer = getattr(module, FINAL_ANSWER, None)  # type: ignore[attr-defined]
    return loaded


def final_answers(reward: Reward, completions: Sequence[Any]) -> list[str | None] | None:
    """Return the answer that each completion ends at, as the reward's file reads it; None where it does not say how.

    A file says so with a function `final_answer(completion)`, which returns a text, the same one for equal answers, or
    None for a completion without an answer. Majority votes are counted by it.

    Raises:
        RewardError: the function fails, or returns anything else.
    """
    final_answer = getattr(reward, FINAL_ANSWER, None)
    if final_answer is None:
        return None
    answers = []
    for completion in completions:
        try:
            answer = final_answer(completion_text(completion))
        except Exception as error:
            raise RewardError(
                f"{_origin(final_answer)} raised {type(error).__name__}: {error}{_place(error)}"
            ) from error
        if not isinstance(answer, str | None):
            raise RewardError(f"{_origin(final_answer)} returned {answer!r}; it must return a text or None")
        answers.append(answer)
    return answers


def required_columns(reward: Reward) -> list[str]:
    """Return the dataset columns that a reward cannot be called without: its parameters without a default."""
    return [
        name
        for name, parameter in inspect.signature(reward).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in KEYWORDS_OF_TRAINER
    ]


def check_columns(rewards: Iterable[Reward], columns: Sequence[str]) -> None:
    """Check, before anything is sampled, that a dataset has the columns that the rewards need.

    Raises:
        RewardError: names the reward, the column it lacks and the columns that exist.
    """
    for reward in rewards:
        missing = [name for name in required_columns(reward) if name not in columns]
        if missing:
            raise RewardError(
                f"{_origin(reward)} needs the column {missing[0]!r}, which the dataset does not have; its "
                f"columns are {', '.join(columns)}.{did_you_mean(missing[0], columns)}"
            )


def checked(reward: Reward) -> Reward:
    """Wrap a reward so that only a list of finite numbers and Nones, one per completion, comes out of it.

    The wrapper keeps the function's name; wrapping twice changes nothing. It raises RewardError, naming function and
    file, when the function raises, and when it returns the wrong type, the wrong number of values, or a value that is
    NaN, infinite or not a number.
    """
    if getattr(reward, "is_checked", False):
        return reward
    origin = _origin(reward)

    @functools.wraps(reward)
    def checked_reward(prompts: list[Any], completions: list[Any], **kwargs: Any) -> list[float | None]:
        try:
            returned = reward(prompts=prompts, completions=completions, **kwargs)
        except Exception as error:
            raise RewardError(f"{origin} raised {type(error).__name__}: {error}{_place(error)}") from error
        if not isinstance(returned, list):
            raise RewardError(
                f"{origin} returned {type(returned).__name__}; it must return a list of numbers and Nones"
            )
        if len(returned) != len(completions):
            raise RewardError(f"{origin} returned {len(returned)} rewards for {len(completions)} completions")
        return [_score(value, index, origin) for index, value in enumerate(returned)]

    checked_reward.__name__ = _name(reward)
    checked_reward.is_checked = True  # type: ignore[attr-defined]
    return checked_reward


def completion_text(completion: str | list[dict[str, Any]]) -> str:
    """Return the text to judge: a completion itself, or the last message's content of a conversation."""
    if isinstance(completion, str):
        return completion
    content = completion[-1]["content"] if completion else ""
    if not isinstance(content, str):
        raise TypeError(f"a message's content must be a string to be judged, not {type(content).__name__}")
    return content


def _score(value: Any, index: int, origin: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, numbers.Real):
        raise RewardError(f"{origin} returned {value!r} ({type(value).__name__}) for completion {index}, not a number")
    if not math.isfinite(value):
        raise RewardError(f"{origin} returned {value} for completion {index}; return None for what cannot be judged")
    return float(value)


def _takes_any_keyword(reward: Reward) -> bool:
    try:
        parameters = inspect.signature(reward).parameters.values()
    except ValueError:  # some built-in functions have no signature
        return False
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _innermost(reward: Reward) -> Reward:
    reward = inspect.unwrap(reward)
    while isinstance(reward, functools.partial):
        reward = inspect.unwrap(reward.func)
    return reward


def _name(reward: Reward) -> str:
    """Name a reward as TRL does: a partial by its function, a callable object by its class."""
    reward = _innermost(reward)
    return getattr(reward, "__name__", type(reward).__name__)


def _origin(reward: Reward) -> str:
    reward = _innermost(reward)
    code = getattr(reward, "__code__", None)
    return f"reward {_name(reward)} in {code.co_filename if code else inspect.getfile(type(reward))}"


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)[1:]
    return f" (at {frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _split_spec(spec: str) -> tuple[str, str]:
    file, _, name = spec.rpartition(":")
    if not file.endswith(".py") or not name:
        raise RewardError(f"a reward is named FILE.py:FUNCTION, such as rewards/gsm8k.py:accuracy, not {spec!r}")
    return file, name


def _find(file: str) -> Path:
    places = list(dict.fromkeys(folder / file for folder in (Path.cwd(), shipped_folder())))
    for place in places:
        if place.is_file():
            return place
    shipped = sorted(f"rewards/{path.name}" for path in (shipped_folder() / "rewards").glob("*.py"))
    raise RewardError(
        f"there is no reward file {file}; looked for {' and '.join(map(str, places))}. "
        f"Shipped: {', '.join(shipped)}." + did_you_mean(file, shipped)
    )


def _import(path: Path) -> ModuleType:
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    name = f"looprl_reward_{path.stem}_{digest}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise RewardError(f"reward file {path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _functions(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and name != FINAL_ANSWER
    ]
