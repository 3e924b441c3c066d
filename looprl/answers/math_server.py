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
    """Read `[gold, answer]`, two formulas, and write whether they are equal; or `[gold]`: whether it can be read."""
    gold, *answer = (_parsed(formula) for formula in json.loads(read_all(channel)))
    verdict = bool(gold) and all(bool(other) and _equal(gold, other) for other in answer)
    channel.sendall(json.dumps(verdict).encode())


def _parsed(formula: str) -> list:
    # LaTeX only: math-verify's reader of plain expressions evaluates them as Python.
    return parse(f"${formula}$", [LatexExtractionConfig()], parsing_timeout=None)


def _equal(gold: list, answer: list) -> bool:
    return verify(gold, answer, timeout_seconds=None)


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # math-verify warns that its alarms are off
    _parsed("1+x")  # its tables are built at the first formula
    serve(compare, folder=sys.argv[1])
