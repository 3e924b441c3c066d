"""Recipes: YAML and flags onto dataclasses, with errors that name the key, the value and the place."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from trl import GRPOConfig

from looprl import recipe_file
from looprl.errors import UserError
from looprl.recipe import RecipeError, parse_options, parse_recipe, recipe_name


class Schedule(Enum):
    CONSTANT = "constant"
    LINEAR = "linear"


@dataclass
class ModelKeys:
    model: str = "tiny"
    num_loops: int = 6
    estimator: Literal["reuse", "full"] = "reuse"
    neumann_steps: int | Literal["auto"] = 4
    reward: list[str] | None = None
    folder: Path = Path("here")


@dataclass
class TrainKeys:
    learning_rate: float = 1e-3
    bf16: bool = False
    shuffle: bool = True
    max_length: int | None = 512
    schedule: Schedule | str = Schedule.CONSTANT
    level: str = field(default="info", metadata={"choices": ["info", "debug"], "help": "How much to print."})
    weights: list[float] = field(default_factory=lambda: [1.0])
    betas: tuple[float, float] = (0.9, 0.99)
    report_to: str | list[str] | None = "none"
    options: dict[str, Any] | None = None
    deepspeed: dict | str | None = None

    def __post_init__(self) -> None:
        if self.learning_rate < 0:
            raise ValueError("learning_rate must not be negative")


@dataclass
class RequiredKeys:
    model: str
    num_loops: int = 6


@dataclass
class LoopedConfig(GRPOConfig):
    kv_policy: str = "terminal"
    logging_steps: float = 1


CLASSES = (ModelKeys, TrainKeys)


@pytest.fixture
def write_recipe(tmp_path, monkeypatch):
    """Run in an empty folder that has an empty recipes folder, and return a function that writes a recipe."""
    (tmp_path / "recipes").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recipe_file, "RECIPES_FOLDER", tmp_path / "recipes")

    def write(text: str, name: str = "mine.yaml") -> str:
        Path(name).write_text(text, encoding="utf-8")
        return name

    return write


def parse(*argv: str) -> tuple[ModelKeys, TrainKeys]:
    model, train = parse_recipe(CLASSES, list(argv), "looprl train")
    return model, train


def error_of(*argv: str, classes: tuple[type, ...] = CLASSES) -> str:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(classes, list(argv), "looprl train")
    return str(caught.value)


def test_without_arguments_every_key_has_its_default():
    assert parse() == (ModelKeys(), TrainKeys())


def test_file_sets_keys_of_several_dataclasses(write_recipe):
    text = "model: big\nnum_loops: 3\nbf16: true\nweights: [1, 2.5]\noptions: {a: 1}\nreward: [x.py:f, y.py:g]\n"
    model, train = parse(write_recipe(text))
    assert (model.model, model.num_loops, model.reward) == ("big", 3, ["x.py:f", "y.py:g"])
    assert (train.bf16, train.weights, train.options) == (True, [1.0, 2.5], {"a": 1})
    assert train.learning_rate == TrainKeys().learning_rate


def test_flag_overrides_file_and_file_overrides_given_defaults(write_recipe):
    name = write_recipe("num_loops: 3\nmodel: big\n")
    defaults = {"num_loops": 1, "model": "none", "bf16": True}
    model, train = parse_recipe(CLASSES, [name, "--num_loops", "9"], "looprl train", defaults=defaults)
    assert (model.num_loops, model.model, train.bf16) == (9, "big", True)


@pytest.mark.parametrize("spelling", ["3e-4", "'3e-4'", "0.0003", "3.0e-4"])
def test_learning_rate_may_be_written_in_any_notation(write_recipe, spelling):
    assert parse(write_recipe(f"learning_rate: {spelling}\n"))[1].learning_rate == 3e-4


def test_numbers_nested_in_a_mapping_are_numbers(write_recipe):
    options = parse(write_recipe("options: {min_lr: 1e-5, n: 2, on: 'yes', inf: .inf}\n"))[1].options
    assert options == {"min_lr": 1e-5, "n": 2, "on": "yes", "inf": float("inf")}


def test_words_that_old_yaml_reads_as_booleans_or_numbers_stay_text(write_recipe):
    model, train = parse(write_recipe("model: no\nreport_to: 12:30\nreward: [on, 2026-01-01]\nbf16: yes\n"))
    assert (model.model, train.report_to, model.reward) == ("no", "12:30", ["on", "2026-01-01"])
    assert train.bf16 is True


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--bf16"], True),
        (["--bf16", "true"], True),
        (["--bf16", "false"], False),
        (["--bf16=no"], False),
    ],
)
def test_bool_flag_stands_alone_or_takes_a_word(flags, expected):
    assert parse(*flags)[1].bf16 is expected


def test_bool_that_is_on_can_be_switched_off(write_recipe):
    assert parse("--no_shuffle")[1].shuffle is False
    assert parse("--shuffle", "false")[1].shuffle is False
    assert parse(write_recipe("shuffle: false\n"))[1].shuffle is False


def test_flags_of_every_kind_are_read():
    model, train = parse(
        *("--neumann_steps", "auto", "--reward", "a.py:f", "b.py:g", "--folder", "there"),
        *("--weights", "-1e-3", "2", "--betas", "0.8", "0.9", "--options", '{"min_lr": 1e-5}'),
        *(
            "--schedule",
            "linear",
            "--max-length",
            "none",
            "--deepspeed",
            "zero.json",
            "--report_to",
            "x",
            "y",
        ),
    )
    assert (model.neumann_steps, model.reward, model.folder) == ("auto", ["a.py:f", "b.py:g"], Path("there"))
    assert (train.weights, train.betas, train.options) == ([-0.001, 2.0], (0.8, 0.9), {"min_lr": 1e-5})
    assert (train.schedule, train.max_length, train.deepspeed) == (Schedule.LINEAR, None, "zero.json")
    assert train.report_to == ["x", "y"]
    assert parse("--neumann_steps", "3")[0].neumann_steps == 3
    assert parse("--report_to", "none")[1].report_to == "none"


def test_null_is_none_where_allowed_and_otherwise_not_given(write_recipe):
    model, train = parse(write_recipe("max_length: null\nnum_loops:\n"))
    assert (train.max_length, model.num_loops) == (None, 6)


def test_empty_file_is_an_empty_recipe(write_recipe):
    assert parse(write_recipe("# nothing yet\n")) == (ModelKeys(), TrainKeys())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("num_loops: six", "a whole number, got \"six\""),
        ("num_loops: 2.5", "a whole number, got 2.5"),
        ("num_loops: true", "a whole number, got true"),
        ("num_loops: [1, 2]", "a whole number, got [1, 2]"),
        ("learning_rate: fast", "a number, got \"fast\""),
        ("learning_rate: {a: 1}", "a number, got {\"a\": 1}"),
        ("bf16: 3", "true or false, got 3"),
        ("bf16: maybe", "true or false, got \"maybe\""),
        ("model: 3", "text, got 3 (put it in quotes to make it text)"),
        ("model: [a]", "text, got [\"a\"]"),
        ("estimator: fulll", "one of: reuse, full, got \"fulll\""),
        ("schedule: cosine", "one of: constant, linear, got \"cosine\""),
        ("level: loud", "one of: info, debug, got \"loud\""),
        ("neumann_steps: many", "a whole number or one of: auto, got \"many\""),
        ("weights: [1, x]", "a list (each item a number), got [1, \"x\"]"),
        ("weights: {a: 1}", "a list (each item a number), got {\"a\": 1}"),
        ("betas: [1]", "a list (a number, a number), got [1] (that is 1 items, not 2)"),
        ("options: [1]", "a mapping or null, got [1]"),
    ],
)  # fmt: skip
def test_wrong_type_names_file_key_expected_type_and_value(write_recipe, line, expected):
    key = line.split(":")[0]
    assert error_of(write_recipe(line)) == f"mine.yaml: {key}: expected {expected}"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--num_loops", "six"], '--num_loops: expected a whole number, got "six"'),
        (["--num_loops", "2.5"], '--num_loops: expected a whole number, got "2.5"'),
        (["--bf16", "3"], '--bf16: expected true or false, got "3"'),
        (["--estimator", "x"], '--estimator: expected one of: reuse, full, got "x"'),
        (["--level", "x"], '--level: expected one of: info, debug, got "x"'),
        (["--num_loops"], "--num_loops: expected one argument"),
    ],
)
def test_wrong_type_in_a_flag_names_the_flag(flags, expected):
    assert error_of(*flags) == expected


@pytest.mark.parametrize("key", ["options", "deepspeed"])
def test_broken_json_in_a_flag_is_an_error(key):
    message = error_of(f"--{key}", "{a: 1")
    assert message.startswith(f"--{key}: expected a mapping") and "not JSON" in message


def test_unknown_key_names_the_nearest_valid_key_and_the_file(write_recipe):
    message = error_of(write_recipe("num_lops: 3\n"))
    assert message.startswith("mine.yaml: unknown key 'num_lops'") and "num_loops" in message


@pytest.mark.parametrize(
    ("flag", "nearest"), [("--neumann", "--neumann_steps"), ("--learnin-rate=1", "--learning_rate")]
)
def test_abbreviated_or_misspelt_flag_names_the_full_flag(flag, nearest):
    message = error_of(flag, "4")
    assert message.startswith(f"unknown flag {flag.split('=')[0]};") and f"{nearest}?" in message


def test_second_positional_argument_is_an_error():
    assert "unexpected argument 'quickstart'" in error_of("--num_loops", "3", "quickstart")


def test_duplicate_key_is_an_error_with_its_line(write_recipe):
    message = error_of(write_recipe("num_loops: 3\nmodel: a\nnum_loops: 4\n"))
    assert message.startswith("mine.yaml, line 3:") and "'num_loops' is given twice" in message
    assert "'a' is given twice" in error_of(write_recipe("options:\n  a: 1\n  a: 2\n"))


def test_broken_yaml_is_an_error_with_its_line(write_recipe):
    assert error_of(write_recipe("model: a\nreward: [a, b\n")).startswith("mine.yaml, line 3:")
    assert error_of(write_recipe("model: a\x00b\n")).startswith("mine.yaml: broken YAML")


def test_file_that_is_not_text_is_an_error(write_recipe):
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert error_of("binary.yaml").startswith("binary.yaml: cannot be read as text")


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n"])
def test_file_that_is_not_a_mapping_is_an_error(write_recipe, text):
    assert error_of(write_recipe(text)).startswith("mine.yaml: a recipe holds a mapping")


def test_key_that_is_not_a_name_is_an_error(write_recipe):
    assert "the key 3 is not a name" in error_of(write_recipe("3: a\n"))


def test_recipe_is_found_by_name_in_the_recipes_folder(write_recipe):
    write_recipe("num_loops: 3\n", "recipes/quick.yaml")
    for spelling in ("quick", "quick.yaml", "recipes/quick.yaml"):
        assert parse(spelling)[0].num_loops == 3
    write_recipe("num_loops: 4\n", "quick.yaml")
    assert parse("quick.yaml")[0].num_loops == 4


def test_folder_in_the_working_directory_does_not_hide_a_recipe(write_recipe):
    write_recipe("num_loops: 3\n", "recipes/quick.yaml")
    Path("quick").mkdir()
    assert parse("quick")[0].num_loops == 3


def test_error_in_a_named_recipe_says_where_the_recipe_is(write_recipe):
    write_recipe("num_loops: x\n", "recipes/quick.yaml")
    assert error_of("quick").startswith("recipes/quick.yaml: num_loops:")


def test_missing_recipe_names_the_nearest_one(write_recipe):
    write_recipe("", "recipes/quickstart.yaml")
    write_recipe("", "recipes/gsm8k.yaml")
    message = error_of("quikstart.yaml")
    assert "'quikstart.yaml'" in message and "'quickstart'?" in message and "gsm8k, quickstart" in message


def test_refusal_by_a_dataclass_carries_the_name_of_the_recipe(write_recipe):
    name = write_recipe("learning_rate: -1\n")
    assert error_of(name) == "mine.yaml: learning_rate must not be negative"
    assert error_of("--learning_rate", "-1e-3") == "command line: learning_rate must not be negative"


def test_missing_required_key_is_named():
    assert error_of(classes=(RequiredKeys,)).startswith("command line: model must be given")
    assert parse_recipe((RequiredKeys,), ["--model", "x"], "p") == (RequiredKeys("x"),)


def test_one_key_in_two_dataclasses_is_refused():
    with pytest.raises(TypeError, match=r"RequiredKeys\.model"):
        parse_recipe((ModelKeys, RequiredKeys), [], "looprl train")


def test_recipe_error_is_a_user_error():
    assert issubclass(RecipeError, UserError)


def test_recipe_name_has_no_folder_and_no_suffix():
    assert recipe_name(["some/where/quick.yaml", "--a", "b"]) == "quick"
    assert recipe_name(["--a", "b"]) is None


def test_grpo_config_parses_from_file_and_flags(write_recipe):
    text = (
        "learning_rate: 3e-4\nlr_scheduler_type: cosine\nlr_scheduler_kwargs: {num_cycles: 2, min_lr: 1e-5}\n"
        "save_strategy: no\nreward_weights: [1, 0.5]\nuse_cpu: true\nbf16: false\nlog_completions: true\n"
        "generation_kwargs: {a: 1}\nreport_to: [tensorboard]\n"
    )
    flags = [
        "--log_completions",
        "false",
        "--model_init_kwargs",
        '{"dtype": "float32"}',
        "--num_generations",
        "4",
    ]
    (config,) = parse_recipe((GRPOConfig,), [write_recipe(text), *flags], "looprl train")
    assert (config.learning_rate, config.lr_scheduler_type, config.save_strategy) == (3e-4, "cosine", "no")
    assert config.lr_scheduler_kwargs == {"num_cycles": 2, "min_lr": 1e-5}
    assert (config.reward_weights, config.log_completions, config.bf16) == ([1.0, 0.5], False, False)
    assert config.model_init_kwargs == {"dtype": "float32"} and config.generation_kwargs == {"a": 1}
    assert (config.num_generations, config.report_to) == (4, ["tensorboard"])
    (config,) = parse_recipe(
        (GRPOConfig,), ["--use_cpu", "--bf16", "no", "--log_completions", "--no_gradient_checkpointing"], "p"
    )
    assert config.log_completions is True and config.gradient_checkpointing is False


def test_grpo_config_refusal_is_a_recipe_error():
    message = error_of("--use_cpu", "--per_device_train_batch_size", "3", classes=(GRPOConfig,))
    assert message.startswith("command line: generation_batch_size (3) must be divisible by num_generations")


def test_help_is_grouped_with_own_keys_first_and_a_short_usage(capsys):
    with pytest.raises(SystemExit) as stopped:
        parse_recipe((LoopedConfig, TrainKeysForHelp), ["--help"], "looprl train")
    text = capsys.readouterr().out
    assert stopped.value.code == 0
    assert text.startswith("usage: looprl train [RECIPE] [--key value ...]\n")
    order = ["LoopedConfig:", "--kv_policy TEXT", "TrainKeysForHelp:", "--level {info,debug}"]
    order += [
        "TrainingArguments (transformers):",
        "--logging_steps NUMBER",
        "GRPOConfig (trl):",
        "--num_generations",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "--no_gradient_checkpointing" not in text and "--num-generations" not in text


@dataclass
class TrainKeysForHelp:
    level: str = field(default="info", metadata={"choices": ["info", "debug"], "help": "How much to print."})


def test_options_of_a_command_without_a_recipe_come_after_its_subject():
    given, options = parse_options(ModelKeys, ["a/b", "--num_loops", "3"], "looprl inspect", "MODEL", "About it.")
    assert given == "a/b" and options == ModelKeys(num_loops=3)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "MODEL is missing: looprl inspect MODEL [--key value ...]"),
        (["--num_loops", "3"], "MODEL is missing"),
        (["a/b", "--num_lops", "3"], "unknown flag --num_lops; did you mean --num_loops?"),
        (["a/b", "c/d"], "unexpected argument 'c/d': MODEL comes first, then the flags"),
        (["a/b", "--num_loops", "x"], '--num_loops: expected a whole number, got "x"'),
    ],
)
def test_bad_options_of_a_command_without_a_recipe_are_refused(argv, message):
    with pytest.raises(RecipeError) as error:
        parse_options(ModelKeys, argv, "looprl inspect", "MODEL", "About it.")
    assert str(error.value).startswith(message)


def test_help_of_a_command_without_a_recipe_names_its_subject(capsys):
    with pytest.raises(SystemExit):
        parse_options(ModelKeys, ["--help"], "looprl inspect", "MODEL", "About it.")
    text = capsys.readouterr().out
    assert text.startswith("usage: looprl inspect MODEL [--key value ...]\n") and "About it." in text
    assert "RECIPE" not in text
