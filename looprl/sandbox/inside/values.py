"""Python values as JSON and back: the plain types, the containers, and a mark for everything else.

null, booleans, strings, floats and small integers stand for themselves; the rest is `[kind, ...]`. What is not a plain
value, such as a generator or a match object, becomes `["object", type name]`, which equals nothing and has no way back.
"""

from typing import Any

_SEQUENCES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_LARGEST_PLAIN = 1 << 62  # json reads and writes longer integers too, but not beyond 4,300 digits


def encode(value: Any) -> Any:
    """Return the JSON form of a value; subclasses count as the plain type that they extend."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int.__index__(value)
        return number if -_LARGEST_PLAIN < number < _LARGEST_PLAIN else ["int", hex(number)]
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, bytes):
        return ["bytes", bytes.hex(value)]
    if isinstance(value, dict):
        return ["dict", [[encode(key), encode(item)] for key, item in dict.items(value)]]
    for kind, plain in _SEQUENCES.items():
        if isinstance(value, plain):
            return [kind, [encode(item) for item in plain.__iter__(value)]]
    return ["object", type(value).__name__]


def decode(form: Any) -> Any:
    """Return the value of a JSON form. Raises ValueError, or TypeError for unhashable keys, where there is none."""
    if not isinstance(form, list):
        return form
    kind, *parts = form
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decode(item) for item in parts[0])
    if kind == "dict":
        return {decode(key): decode(item) for key, item in parts[0]}
    if kind == "int":
        return int(parts[0], 16)
    if kind == "complex":
        return complex(*parts)
    if kind == "bytes":
        return bytes.fromhex(parts[0])
    raise ValueError(f"{kind} is no kind of value")
