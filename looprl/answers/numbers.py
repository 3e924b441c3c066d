"""Numbers as people write them: `$70,000`, `-3`, `2 2/3`, `50%`, `.5`, and the LaTeX of each.

math-verify reads `2 2/3` as 4/3, `50%` as 1/2 and takes `$` for a formula's border: numbers are therefore read here, as
exact fractions, and only what is more than a number goes to math-verify.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

# A minus sign counts only where it cannot be a subtraction: not right behind a number, a word or a bracket.
NUMBER = re.compile(
    r"(?P<minus>(?<![\w)\].])(?:(?<![\w)\].]\s)-\s|-))?(?P<currency>[$€£¥₹]\s?)?(?P<inner_minus>(?<=[$€£¥₹])-)?"
    r"(?P<whole>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![\w.])\.[0-9]+)"
    r"(?:\s+(?P<part>[0-9]{1,9})/(?P<parts>[0-9]{1,9})(?![0-9.])|/(?P<divisor>[0-9]{1,9})(?![0-9.]))?"
    r"(?P<percent>\s?%)?"
)
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_SAME_AS_PLAIN = {
    "\\$": "$", "\\%": "%", "\\!": "", "\\,": " ", "\\;": " ", "\\ ": " ", "~": " ",
    "\\left": "", "\\right": "", "−": "-", "–": "-", "**": "", "__": "", "`": "", "\\(": "", "\\)": "",
    "\\[": "", "\\]": "",
}  # fmt: skip
_GROUPS = re.compile(r"(?:\{,\}|,\\!)\s*(?=[0-9])")  # how LaTeX separates thousands
_MIXED = re.compile(r"(?<![0-9.,/^])([0-9]+)\s+([0-9]+/[0-9]+)(?![0-9.])")
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])")


@dataclass(frozen=True)
class Number:
    """A number as it was written: `value` of `50%` is 50, and `percent` says that the sign stood there."""

    value: Fraction
    percent: bool = False

    def answers(self, gold: "Number") -> bool:
        """Whether this is the gold number.

        `50%` answers 50 and `50%`, not 0.5. A gold percentage is answered by `50%`, by 50 and by its value 0.5.
        """
        as_value = gold.percent and not self.percent and self.value == gold.value / 100
        return self.value == gold.value or as_value


def plain(text: str) -> str:
    r"""Write LaTeX's numbers and Markdown's emphasis as plain text: `2\frac{1}{2}` becomes `2 1/2`, `**72**` `72`."""
    text = _TEXT.sub(r" \1 ", _GROUPS.sub(",", text))
    for written, same in _SAME_AS_PLAIN.items():
        text = text.replace(written, same)
    text = _FRACTION.sub(lambda found: f" {found[1] or found[2]}/{found[3] or found[4]} ", text)
    text = re.sub(r"-\s+(?=[0-9]+/)", "-", text)
    dollars = text.strip()
    if len(dollars) > 2 and dollars[0] == dollars[-1] == "$":  # a formula's border, not a currency
        text = dollars.strip("$")
    return re.sub(r"\s+", " ", text).strip()


def read_number(text: str) -> Number | None:
    """Return the number that the whole text is, None where it is anything else."""
    found = NUMBER.fullmatch(plain(text).removesuffix("."))
    return _value(found) if found else None


def numbers_in(text: str) -> list[Number]:
    """Return the numbers of a text in order; a division by zero is none."""
    return [number for found in NUMBER.finditer(plain(text)) if (number := _value(found)) is not None]


def for_math_verify(text: str) -> str:
    """Return a formula in which mixed numbers are sums and thousands are not separated."""
    text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), _plain_spacing(text))
    text = re.sub(r"(?<![0-9.,}^])([0-9]+)\s*\\[dt]?frac\s*\{([0-9]+)\}\s*\{([0-9]+)\}", r"(\1+\2/\3)", text)
    return _MIXED.sub(r"(\1+\2)", text)


def _plain_spacing(text: str) -> str:
    r"""Take LaTeX's spacing and currency out of a formula: `\$11,\!111` becomes `11,111`."""
    text = _GROUPS.sub(",", text)
    for written, same in {"\\!": "", "\\$": "", "−": "-"}.items():
        text = text.replace(written, same)
    return text.strip().strip("$").strip()


def _value(found: re.Match[str]) -> Number | None:
    value = Fraction(Decimal(found["whole"].replace(",", "")))  # int() refuses more than 4,300 digits
    if found["part"] is not None:
        if not 0 < int(found["part"]) < int(found["parts"]) or "." in found["whole"]:
            return None
        value += Fraction(int(found["part"]), int(found["parts"]))
    elif found["divisor"] is not None:
        if int(found["divisor"]) == 0:
            return None
        value /= int(found["divisor"])
    negative = found["minus"] or found["inner_minus"]
    return Number(-value if negative else value, percent=found["percent"] is not None)
