"""A small byte-level tokenizer that keeps each number from 0 to 99 one token in every context.

Text is cut into runs of digits, words, signs and the rest. Blanks belong to the word or sign beside them,
never to a number, so `12` is the same token at the start of a line, after a space and before a full stop. A
piece that the built-in tasks use is one token; any other falls to its bytes, so every text comes back
exactly.
"""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from looprl.data.arithmetic import template_texts
from looprl.errors import UserError

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
PIECES = r"[0-9]+| ?[A-Za-z]+[.?!,]? ?| ?[-+*/=] ?|#+ ?|[.?!,]+ ?"
ONE_TOKEN_NUMBERS = range(100)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer: ids 0, 1, 2 are `<pad>`, `<bos>`, `<eos>`, then bytes, numbers and task
    pieces.

    Encoding puts exactly one `<bos>` in front and nothing behind. Any text decodes to itself (with the
    leading `<bos>` left out). The strings `<pad>`, `<bos>` and `<eos>` in a text are read as the
    special tokens they name, so decode with `skip_special_tokens=False` to see them again.
    """
    cut = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    to_byte_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pre_tokenizer = pre_tokenizers.Sequence([cut, to_byte_letters])
    task_pieces = {piece for text in template_texts() for piece, _ in pre_tokenizer.pre_tokenize_str(text)}
    entries = [
        *(PAD, BOS, EOS),
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
        *(str(number) for number in ONE_TOKEN_NUMBERS),
        *sorted(task_pieces),
    ]
    vocabulary = {entry: index for index, entry in enumerate(dict.fromkeys(entries))}

    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (PAD, BOS, EOS)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, vocabulary[BOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(path_or_name: str) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model. UserError when there is none that can be read."""
    try:
        return AutoTokenizer.from_pretrained(path_or_name)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0].rstrip(": ")
        raise UserError(f"{path_or_name}: no tokenizer that can be read beside the model ({reason})") from error
