"""The tokenizer: any text comes back, every number is one token, the task's pieces are whole."""

import json
import random

import pytest
from transformers import AutoTokenizer

from looprl.data.arithmetic import ArithmeticTask, demonstrations, problems, template_texts
from looprl.data.tokenizer import build_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def random_texts(count):
    rng = random.Random(0)
    ranges = [(0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)]
    for _ in range(count):
        yield "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(0, 40)))


CORNERS = [
    "",
    " ",
    "   leading and trailing   ",
    "\r\n\t\n\n \x00\x1f",
    "naïve café — 😀👩‍👩‍👧 你好 ١٢ ½",
    "12.5% of $1,080 is 135; 007 + 100 = 107",
    "Tom has 12apples.Tom  buys 3 .\n####11",
    "e\u0301 vs \u00e9, \ufeffBOM, \ufffd",
    "a , b ! c ? 's n't I 'm",
    "<pad <bos eos> <|endoftext|>",
]


@pytest.mark.parametrize("text", CORNERS)
def test_corner_cases_round_trip(tokenizer, text):
    assert tokenizer.decode(encode(tokenizer, text)) == text
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_any_text_round_trips(tokenizer):
    for text in random_texts(500):
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_special_tokens_written_in_a_text_are_those_tokens_and_come_back(tokenizer):
    text = "a <eos> b<pad><bos>c"
    assert {0, 1, 2} <= set(encode(tokenizer, text))
    assert tokenizer.decode(encode(tokenizer, text), skip_special_tokens=False) == text


def test_each_number_is_one_token_in_every_context(tokenizer):
    contexts = [
        "{}", " {}", "{} ", "  {}  ", "\n{}\n", "Tom has {} apples.", "Tom buys {}. Tom", "{} + ", " - {} = ",
        "#### {}", "({})", "x{}y", "-{}", "${},", "{}%", "é{}é", "{}😀", "####{}", "= {}\n", "<bos>{}<eos>",
    ]  # fmt: skip
    for number in range(100):
        (token,) = encode(tokenizer, str(number))
        assert tokenizer.decode([token]) == str(number)
        for context in contexts:
            ids = encode(tokenizer, context.format(number))
            before, after = (encode(tokenizer, part) for part in context.split("{}"))
            assert ids == [*before, token, *after], context


def test_every_word_and_sign_of_the_task_is_one_token(tokenizer):
    first_piece = 3 + 256 + 90
    for problem in problems(ArithmeticTask(), "test", 300, seed=0):
        text = f"{problem['question']}\n{problem['answer']}"
        for token in encode(tokenizer, text):
            piece = tokenizer.decode([token])
            assert token >= first_piece or piece == "\n" or piece.isdigit()
    pieces = {token for text in template_texts() for token in encode(tokenizer, text) if token >= first_piece}
    assert pieces == set(range(first_piece, len(tokenizer)))


def test_a_worked_answer_with_its_end_is_fifteen_tokens_and_its_question_twenty(tokenizer):
    for problem in problems(ArithmeticTask(), "train", 100, seed=0):
        assert len(encode(tokenizer, problem["answer"] + tokenizer.eos_token)) == 15
        assert len(tokenizer(problem["question"] + "\n")["input_ids"]) == 20


def test_a_prompt_and_its_answer_tokenize_the_same_together_and_apart(tokenizer):
    for row in demonstrations(ArithmeticTask(), 300, seed=0):
        prompt, answer = row["question"] + "\n", row["answer"]
        assert tokenizer(prompt + answer)["input_ids"] == tokenizer(prompt)["input_ids"] + encode(tokenizer, answer)


def test_exactly_one_bos_is_put_in_front_and_no_eos_behind(tokenizer):
    for text in ("", "Tom has 3", "  x"):
        ids = tokenizer(text)["input_ids"]
        assert ids == [tokenizer.bos_token_id, *encode(tokenizer, text)]
        assert tokenizer.eos_token_id not in ids


def test_special_ids_and_padding_side_are_fixed(tokenizer):
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert tokenizer.clean_up_tokenization_spaces is False
    batch = tokenizer(["Tom has 3", "1"], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}
    assert batch["input_ids"][1][0] == 0 and batch["input_ids"][1][-1] == encode(tokenizer, "1")[0]
    assert batch["attention_mask"][1][0] == 0 and batch["attention_mask"][1][-1] == 1


def test_the_vocabulary_is_small_and_without_gaps(tokenizer):
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    assert 350 < len(tokenizer) < 450


def test_saving_and_loading_changes_nothing(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard_of"}))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.padding_side == "left"
    assert (loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id) == (0, 1, 2)
    for text in [*CORNERS, *template_texts(), *random_texts(100)]:
        ids = tokenizer(text)["input_ids"]
        assert loaded(text)["input_ids"] == ids
        assert loaded.decode(ids) == tokenizer.decode(ids)
