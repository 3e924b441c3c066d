"""`looprl models`: every family, what it supports, and why not."""

import re

from looprl.cli import main
from looprl.models import FAMILIES
from looprl.models.registry import REFUSED
from tests.published import random_published


def test_every_family_is_listed_with_what_it_supports_and_every_refusal_with_its_reason(capsys):
    assert main(["models"]) == 0
    blocks = capsys.readouterr().out.split("\n\n")
    assert [block.splitlines()[0] for block in blocks[:-1]] == list(FAMILIES)
    facts = {}
    for block in blocks:
        name, *lines = block.splitlines()
        facts[name] = dict(re.split(" {2,}", line.strip(), maxsplit=1) for line in lines)
    assert facts["ouro"]["per-loop KV"] == "yes, the default" and facts["ouro"]["exit gate"] == "yes"
    assert facts["huginn_raven"]["terminal KV"] == "yes, the default"
    assert facts["ouro"]["RLTT"] == "yes, with loop_weights uniform, progressive, exit"
    assert facts["parcae"]["RLTT"] == "yes, with loop_weights uniform, progressive"
    assert facts["huginn_raven"]["exit gate"] == "no: the model has none"
    assert all(reason in blocks[-1] for reason in REFUSED.values())


def test_what_rl_leaves_as_it_is_is_named_by_parameter():
    ouro = random_published("ouro")
    gate = {"model.early_exit_gate.weight", "model.early_exit_gate.bias"}
    assert ouro.left_as_they_are(1).keys() == gate | {"model.embed_tokens.weight"}
    assert ouro.left_as_they_are(None).keys() == gate
    assert not ouro.left_as_they_are(None, weighted_by_exit=True)
    assert random_published("ouro", tie_word_embeddings=True).left_as_they_are(1).keys() == gate
    assert not random_published("parcae").left_as_they_are(1)
