"""What a plan did beside measuring, as JSON and back, with every bit of its arrays."""

import base64
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import numpy as np

from samepolicy.errors import InputError


def pack(value: Any) -> Any:
    """A value of numbers, text, arrays, tuples, mappings and this package's dataclasses, JSON-ready.

    >>> unpack(pack({("a", 1): (np.array([1.5]), None)}))
    {('a', 1): (array([1.5]), None)}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        content = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": content, "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, tuple | list):
        return {"tuple": [pack(one) for one in value]}
    if isinstance(value, Mapping):
        return {"pairs": [[pack(key), pack(one)] for key, one in value.items()]}
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        held = {f.name: pack(getattr(value, f.name)) for f in fields(value)}
        return {"class": f"{kind.__module__}:{kind.__qualname__}", "fields": held}
    raise InputError(f"{type(value).__name__} cannot be kept in a file; run without --resume.")


def unpack(value: Any) -> Any:
    """The inverse of `pack`; makes nothing but arrays and dataclasses of this package.

    Raises:
        ValueError: a class of elsewhere, or content that `pack` did not write.
        KeyError: the same.
    """
    if not isinstance(value, dict):
        return value
    if "array" in value:
        found = np.frombuffer(base64.b64decode(value["array"]), dtype=np.dtype(value["dtype"]))
        return found.reshape(value["shape"]).copy()
    if "tuple" in value:
        return tuple(unpack(one) for one in value["tuple"])
    if "pairs" in value:
        return {unpack(key): unpack(one) for key, one in value["pairs"]}
    module, _, name = value["class"].partition(":")
    kind = getattr(import_module(module), name, None) if module.startswith("samepolicy.") else None
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise ValueError(f"{value['class']} is no dataclass of this package.")
    made: Any = object.__new__(kind)
    for key, one in value["fields"].items():
        object.__setattr__(made, key, unpack(one))
    return made
