"""The process that runs one program: it calls one function with every input and reports what came back, as data.

Whatever the program does to this process, only its own report suffers: nothing here knows the expected values.
"""

# ruff: noqa: F401 (programs use these modules: imported once, they are there in every forked process)
import bisect
import cmath
import collections
import copy
import datetime
import decimal
import fractions
import functools
import heapq
import itertools
import json
import math
import operator
import random
import re
import socket
import statistics
import string
import sys
import typing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # not a package here: looprl is not in the sandbox

from server import read_all, serve
from values import decode, encode


def run_program(channel: socket.socket) -> None:
    """Read `{"code", "entry_point", "inputs"}` and write `{"calls": [[value] or null, ...]}`, null for an exception."""
    request = json.loads(read_all(channel))
    inputs = [decode(form) for form in request["inputs"]]
    random.seed(0)
    namespace: dict[str, Any] = {"__name__": "solution"}  # not __main__: what stands under that test is no part of it
    try:
        exec(compile(request["code"], "<solution>", "exec"), namespace)
        function = namespace[request["entry_point"]]
    except BaseException as error:
        answer: dict[str, Any] = {"failed": type(error).__name__}
    else:
        answer = {"calls": [_call(function, arguments) for arguments in inputs]}
    channel.sendall(json.dumps(answer).encode())


def _call(function: Any, arguments: Any) -> Any:
    try:
        return [encode(function(*arguments))]
    except BaseException:  # sys.exit() and the like: an exception for any reason is no answer
        return None


if __name__ == "__main__":
    serve(run_program, folder=sys.argv[1])
