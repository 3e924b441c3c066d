"""The fork server that compares formulas: math-verify is imported once, and every pair is compared in a forked process.

There, without math-verify's own alarms, the time limit of the process holds in the middle of any computation.
"""

import json
import logging
import socket
import sys

from math_verify import LatexExtractionConfig, parse, verify

from looprl.sandbox.inside.server import read_all, serve


def compare(channel: socket.socket) -> None:
    """Read `[gold, answer]`, two formulas, and write whether they are equal, or null where the gold cannot be read."""
    gold, answer = json.loads(read_all(channel))
    verdict = _are_equal(gold, answer)
    channel.sendall(json.dumps(verdict).encode())


def _are_equal(gold: str, answer: str) -> bool | None:
    expected = _parsed(gold)
    if not expected:
        return None
    given = _parsed(answer)
    return bool(given) and verify(expected, given, timeout_seconds=None)


def _parsed(formula: str) -> list:
    # LaTeX only: math-verify's reader of plain expressions evaluates them as Python.
    return parse(f"${formula}$", [LatexExtractionConfig()], parsing_timeout=None)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # math-verify warns that its alarms are off
    _parsed("1+x")  # its tables are built at the first formula
    serve(compare, folder=sys.argv[1])
