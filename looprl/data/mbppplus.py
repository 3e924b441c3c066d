"""MBPP+: short Python functions to write, each tested with all of its base and plus inputs.

Both public schemas become the same columns: `task_id`, `prompt`, `entry_point` and `tests`, one JSON object that
`rewards/mbppplus.py` reads:

- `entry_point`, `reference` (the canonical solution) and `atol`;
- `inputs`: the encoded arguments of every call;
- `expected`: the encoded value of every call, or null, where the canonical solution gives it.

EvalPlus's JSONL has `base_input`, `plus_input`, `canonical_solution` and `atol`; the hub's `evalplus/mbppplus` has
`code` and a `test` script, which is parsed and never executed.
"""

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from looprl.data.errors import DatasetError
from looprl.data.mbppplus_inputs import restore
from looprl.sandbox.inside.values import encode

HUB_NAME = "evalplus/mbppplus"
EVALPLUS_COLUMNS = ("task_id", "prompt", "entry_point", "canonical_solution", "base_input", "plus_input", "atol")
HUB_COLUMNS = ("task_id", "prompt", "code", "test")


def from_evalplus(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row of EvalPlus's JSONL; arguments that JSON could not carry are restored."""
    inputs = restore(row["task_id"], row["base_input"]) + restore(row["task_id"], row["plus_input"])
    shown_tests = row.get("assertion", "").split("\n")
    return _row(row, row["entry_point"], row["canonical_solution"], inputs, None, row["atol"], shown_tests)


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row of the hub's dataset.

    Its script assigns `inputs`, and `results` where it does not call the canonical solution itself; it ends with
    `assertion(FUNCTION(*inp), ..., ATOL)`.
    """
    script = ast.parse(row["test"])
    assigned = {
        target.id: node.value
        for node in script.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = [node for node in ast.walk(script) if isinstance(node, ast.Call)]
    checks = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "assertion"]
    if "inputs" not in assigned or not checks or not isinstance(checks[-1].args[0], ast.Call):
        raise ValueError("the test script has no `inputs`, or no call of `assertion`")
    entry_point = ast.unparse(checks[-1].args[0].func)
    expected = _literal(assigned["results"]) if "results" in assigned else None
    inputs = _literal(assigned["inputs"])
    if expected is not None and len(expected) != len(inputs):
        raise ValueError(f"the test script has {len(inputs)} inputs and {len(expected)} results")
    shown_tests = row.get("test_list") or []
    return _row(row, entry_point, row["code"], inputs, expected, _literal(checks[-1].args[2]), shown_tests)


def convert(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row of either schema. Raises DatasetError, naming the task, where it is not one."""
    try:
        return from_evalplus(row) if "canonical_solution" in row else from_hub(row)
    except (ValueError, TypeError, SyntaxError, KeyError, IndexError, AttributeError) as error:
        raise DatasetError(f"MBPP+ task {row.get('task_id')}: {type(error).__name__}: {error}") from error


def plain(row: Mapping[str, Any]) -> str:
    """A docstring that a base model continues with the function."""
    return f'"""\n{row["prompt"]}\n"""\n'


def chat(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """The messages of one turn, for models with a chat template."""
    task = f"{row['prompt']}\n\nAnswer with the code of the whole function in one ```python block."
    return [{"role": "user", "content": task}]


TEMPLATES = {"plain": plain, "chat": chat}


def _row(
    row: Mapping[str, Any],
    entry_point: str,
    reference: str,
    inputs: list[Any],
    expected: list[Any] | None,
    atol: float,
    shown_tests: Sequence[str],
) -> dict[str, Any]:
    if not inputs:
        raise ValueError("no inputs")
    # The task must be clear from the prompt alone, and some prompts do not say how the function is called.
    prompt = re.sub(r'^\s*(?:"""|\'\'\')|(?:"""|\'\'\')\s*$', "", row["prompt"]).strip()
    call = f"{entry_point}("
    if call not in prompt:
        shown = next((test for test in shown_tests if call in test), f"The function is called {entry_point}.")
        prompt += f"\n{shown}"
    tests = {
        "entry_point": entry_point,
        "reference": reference,
        "inputs": [encode(list(arguments)) for arguments in inputs],
        "expected": None if expected is None else [encode(value) for value in expected],
        "atol": atol,
    }
    return {
        "task_id": str(row["task_id"]),
        "prompt": prompt,
        "entry_point": entry_point,
        "tests": json.dumps(tests),
    }


class _SpecialFloats(ast.NodeTransformer):
    """`inf` and `nan`, as a printed list has them, are names to Python."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant({"inf": math.inf, "nan": math.nan}[node.id]) if node.id in ("inf", "nan") else node


def _literal(node: ast.AST) -> Any:
    return ast.literal_eval(_SpecialFloats().visit(node))
