"""A .pt file that torch.save wrote, read so that nothing in it can run."""

import warnings
import zipfile
from pathlib import Path
from typing import Any

from samepolicy.errors import CorruptFileError, MissingDependencyError

_HEAD = 400
"""Bytes of the pickle that hold the first keys of a mapping."""


def first_bytes(file: Path) -> bytes:
    """The beginning of what a .pt file holds, still encoded; nothing where it is no such file. Never raises."""
    try:
        with zipfile.ZipFile(file) as archive:
            name = next((n for n in archive.namelist() if n.endswith("/data.pkl")), "")
            if not name:
                return b""
            with archive.open(name) as data:
                return data.read(_HEAD)
    except (OSError, zipfile.BadZipFile, ValueError):
        return b""


def load(file: Path) -> dict[str, Any]:
    """What a .pt file holds: tensors, numbers, text, lists and mappings of them, on the CPU.

    Raises:
        CorruptFileError: it is damaged, holds other Python objects, which could run code, or no mapping.
        MissingDependencyError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError("Reading a .pt file needs torch: pip install 'samepolicy[hf]'.") from error
    try:
        with torch.serialization.safe_globals(_arrays()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's about a foreign pickle comes before its refusal
            content = torch.load(file, map_location="cpu", weights_only=True)
    except (PermissionError, FileNotFoundError):
        raise
    except Exception as error:
        raise CorruptFileError(_sentence(file, str(error))) from error
    if not isinstance(content, dict):
        raise CorruptFileError(
            f"{file} holds a {type(content).__name__} and not what slime or miles saves; give its dump."
        )
    return content


def _arrays() -> list[Any]:
    """What a NumPy array of numbers is saved with; none of it runs anything."""
    import numpy as np
    from numpy._core import multiarray

    kinds = {type(np.dtype(name)) for name in ("i1", "i2", "i4", "i8", "u1", "u2", "f2", "f4", "f8", "?")}
    return [multiarray._reconstruct, np.ndarray, np.dtype, *kinds]


def _sentence(file: Path, why: str) -> str:
    """Why a file was not read."""
    if "Unsupported global: GLOBAL " in why or "weights_only" in why.lower():
        what = why.partition("GLOBAL ")[2].split(" ")[0] or "objects"
        return (
            f"{file} holds Python objects ({what}), and unpickling such could run code; "
            "save it anew as plain lists, numbers and tensors."
        )
    line = why.splitlines()[0].rstrip(".") if why else "no reason given"
    return f"{file} is truncated or damaged ({line}); copy it again."
