"""Checkpoint folders: whole or not there, and any damage is found before it is used."""

import json
import logging
import os

import pytest

from looprl import checkpoints
from looprl.checkpoints import MANIFEST_FILE, CheckpointError, CheckpointStore, step_of, verify

FILES = {"model.safetensors": bytes(range(256)) * 3, "trainer_state.json": b'{"global_step": 2}', "empty": b""}


def write(store, step, files=FILES):
    staging = store.stage(step)
    for name, content in files.items():
        (staging / name).parent.mkdir(exist_ok=True)
        (staging / name).write_bytes(content)
    return store.publish(step)


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints")


def test_what_is_published_verifies_and_is_all_that_is_there(store):
    path = write(store, 2, FILES | {"global_step2/shard.pt": b"x"})
    verify(path)
    assert store.newest_good() == path == store.path(2)
    assert [entry.name for entry in store.folder.iterdir()] == ["step-2"]
    assert (path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert step_of(path) == 2


def test_every_flipped_byte_is_found(store):
    path = write(store, 2)
    flipped = 0
    for name in (*FILES, MANIFEST_FILE):
        content = (path / name).read_bytes()
        for position in range(len(content)):
            changed = bytes([content[position] ^ 0x01])
            (path / name).write_bytes(content[:position] + changed + content[position + 1 :])
            with pytest.raises(CheckpointError):
                verify(path)
            flipped += 1
        (path / name).write_bytes(content)
    verify(path)
    assert flipped > 1000


@pytest.mark.parametrize("name", [*FILES, MANIFEST_FILE])
def test_a_missing_file_is_found(store, name):
    path = write(store, 2)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        verify(path)


@pytest.mark.parametrize("tenth", range(10))
def test_truncated_anywhere_the_one_before_is_used_and_the_damage_named(store, tenth, caplog):
    good, damaged = write(store, 2), write(store, 4)
    names = sorted(name for name in (*FILES, MANIFEST_FILE) if name != "empty")
    name = names[tenth % len(names)]
    os.truncate(damaged / name, (damaged / name).stat().st_size * tenth // 10)
    with caplog.at_level(logging.WARNING):
        assert store.newest_good() == good
    assert str(damaged) in caplog.text and name in caplog.text
    store.set_aside_after(2)
    assert store.steps() == [2] and (store.folder / "step-4.aside").is_dir()
    verify(write(store, 4))


def test_none_that_is_whole_is_an_error_and_none_at_all_is_not(store):
    assert store.newest_good() is None
    for step in (1, 2):
        (write(store, step) / "empty").unlink()
    with pytest.raises(CheckpointError, match="step-1 is damaged"):
        store.newest_good()


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"files": {}}', '{"files": 3}', '{"files": {"a": 1}}'])
def test_a_manifest_that_says_nothing_is_damage(store, manifest):
    path = write(store, 2)
    (path / MANIFEST_FILE).write_text(manifest)
    with pytest.raises(CheckpointError, match=MANIFEST_FILE):
        verify(path)


@pytest.mark.parametrize("call", range(8))
def test_interrupted_anywhere_in_publishing_the_earlier_ones_stay(store, monkeypatch, call):
    good = write(store, 2)
    staging = store.stage(4)
    (staging / "model.safetensors").write_bytes(b"x" * 100)
    calls = []

    def interrupt(function):
        def call_or_raise(*args):
            calls.append(function)
            if len(calls) == call + 1:
                raise OSError("cut")
            return function(*args)

        return call_or_raise

    for owner, name in ((os, "fsync"), (os, "rename"), (checkpoints, "_sha256")):
        monkeypatch.setattr(owner, name, interrupt(getattr(owner, name)))
    try:
        store.publish(4)
        published = True
    except OSError:
        published = False
    monkeypatch.undo()
    assert published == (call >= 6)
    verify(good)
    assert store.newest_good() == (store.path(4) if 4 in store.steps() else good)
    store.clear_partial()
    assert sorted(entry.name for entry in store.folder.iterdir()) == [f"step-{step}" for step in store.steps()]


def test_a_step_written_again_replaces_the_earlier_one(store):
    write(store, 2, {"a": b"old"})
    path = write(store, 2, {"a": b"new"})
    assert (path / "a").read_bytes() == b"new"
    assert list(json.loads((path / MANIFEST_FILE).read_text())["files"]) == ["a"]
    assert [entry.name for entry in store.folder.iterdir()] == ["step-2"]


def test_thinning_out_keeps_the_newest_and_whatever_lies_ahead(store):
    for step in (2, 4, 10, 30):
        write(store, step)
    store.thin_out(2, 10)
    assert store.steps() == [4, 10, 30]
