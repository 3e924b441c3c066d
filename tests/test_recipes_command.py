"""`looprl recipes`: what it lists, what it copies, and what it refuses to overwrite."""

from pathlib import Path

import pytest

from looprl.cli import main
from looprl.recipe_file import RECIPES_FOLDER, load_recipe, shipped_recipes, summary_line


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def recipes(*argv):
    return main(["recipes", *argv])


def test_every_recipe_is_listed_with_one_line(capsys):
    assert recipes() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped_recipes())
    assert [line.split(maxsplit=1)[1] for line in lines] == [summary_line(path) for path in shipped_recipes().values()]
    assert any(line.startswith("quickstart ") and "arithmetic" in line for line in lines)


def test_summary_of_a_recipe_without_a_comment_is_empty():
    Path("plain.yaml").write_text("num_loops: 3\n# later\n")
    assert summary_line(Path("plain.yaml")) == ""
    Path("empty.yaml").touch()
    assert summary_line(Path("empty.yaml")) == ""


@pytest.mark.parametrize("name", ["quickstart", "quickstart.yaml", "recipes/quickstart.yaml"])
def test_copy_lands_in_the_working_directory_unchanged(name, capsys):
    assert recipes("copy", name) == 0
    assert capsys.readouterr().out == "wrote quickstart.yaml\n"
    assert Path("quickstart.yaml").read_bytes() == (RECIPES_FOLDER / "quickstart.yaml").read_bytes()
    assert load_recipe(Path("quickstart.yaml"))["model"] == "recipes/quickstart/model"


def test_copy_replaces_a_file_only_when_forced(capsys):
    Path("quickstart.yaml").write_text("num_loops: 3\n")
    assert recipes("copy", "quickstart") == 2
    assert "quickstart.yaml exists in the working directory: replace it with --force" in capsys.readouterr().err
    assert Path("quickstart.yaml").read_text() == "num_loops: 3\n"
    assert recipes("copy", "quickstart", "--force") == 0
    assert Path("quickstart.yaml").read_bytes() == (RECIPES_FOLDER / "quickstart.yaml").read_bytes()


def test_copy_onto_a_folder_or_onto_itself_is_refused_even_when_forced(capsys, monkeypatch):
    Path("quickstart.yaml").mkdir()
    assert recipes("copy", "quickstart", "--force") == 2
    assert "is not a file" in capsys.readouterr().err
    monkeypatch.chdir(RECIPES_FOLDER)
    assert recipes("copy", "quickstart", "--force") == 2
    assert "the shipped recipe itself" in capsys.readouterr().err


def test_typo_names_the_nearest_recipe(capsys):
    assert recipes("copy", "quikstart") == 2
    message = capsys.readouterr().err
    assert (
        message.startswith("looprl recipes: error: no recipe 'quikstart'") and "Did you mean 'quickstart'?" in message
    )
    assert not list(Path().iterdir())


def test_recipe_of_the_working_directory_is_not_one_to_copy(capsys):
    Path("mine.yaml").write_text("num_loops: 3\n")
    assert recipes("copy", "mine") == 2
    assert "no recipe 'mine'" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [("remove", "quickstart"), ("copy",), ("copy", "quickstart", "--forc")])
def test_what_it_does_not_know_is_an_error(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        recipes(*argv)
    assert stop.value.code == 2 and "usage: looprl recipes" in capsys.readouterr().err


def test_help_names_copy_and_force(capsys):
    with pytest.raises(SystemExit) as stop:
        recipes("--help")
    assert stop.value.code == 0 and "usage: looprl recipes [copy NAME [--force]]" in capsys.readouterr().out
