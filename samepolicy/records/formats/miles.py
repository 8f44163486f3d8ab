"""miles' dump of training data: train_data/ROLLOUT_RANK.pt, one file for each rank.

Ranks of one tensor-parallel group hold the same samples; each sample is taken once, from the file that holds most of
it, and the number of further copies stands in `info["copies"]`. Shards of context parallelism hold slices of a
sequence and are refused. Files are loaded with weights_only: whatever could run code is refused.

Source: miles (commit 31f1ca961), `save_debug_train_data` in miles/utils/train_dump_utils.py. Checked against files
that this function wrote from made-up batches; no miles training was run.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samepolicy.errors import CorruptFileError, InputError
from samepolicy.records.dumps import USUAL, Options, gathered, named
from samepolicy.records.formats.slime import files_in, row
from samepolicy.records.run import Run
from samepolicy.records.source import tell
from samepolicy.records.torch_files import first_bytes, load

_WHOLE = ("raw_reward",)
"""Columns of the whole batch rather than of the rank's samples."""


def detect(path: Path) -> bool:
    """Whether the path is a rank's .pt file, or a folder with one."""
    return any(b"rollout_data" in first_bytes(file) for file in files_in(path)[:1])


def read(path: Path, options: Options = USUAL) -> Run:
    """All rollouts and ranks of a folder, or one file.

    Args:
        path: a rank's file, a folder of them, or the folder of --dump-details.
        options: who is told of a file that cannot be read.

    Raises:
        CorruptFileError: a file that is damaged, holds Python objects, or is not as miles writes it.
        InputError: a shard of context parallelism.
        MissingDependencyError: torch is not installed.
    """
    best: dict[tuple[int, int], dict[str, Any]] = {}
    seen = 0
    for file in files_in(path):
        for found in _kept(file, options):
            seen += 1
            key = (found["step"], found["sample"])
            if key not in best or _size(found) > _size(best[key]):
                best[key] = found
    return named(path, lambda _: gathered([best[key] for key in sorted(best)], source="miles", copies=seen - len(best)))


def _size(found: dict[str, Any]) -> int:
    """How many columns a sample has."""
    return sum(value is not None for value in found.values())


def _kept(file: Path, options: Options) -> list[dict[str, Any]]:
    """The samples of a file; none where it cannot be read and somebody is told."""
    rows: list[dict[str, Any]] = []

    def fill(path: Path) -> Run:
        rows.extend(_rows(path))
        return Run()

    try:
        named(file, fill)
    except CorruptFileError as error:
        tell(error, options.on_bad)
    return rows


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    """The samples of one rank as columns."""
    content = load(file)
    if int(content.get("cp_size", 1)) > 1:
        raise InputError(
            f"{file} is one of {content['cp_size']} context-parallel shards, which hold slices of a sequence; "
            "dump with context parallelism off."
        )
    data = {name: column for name, column in content["rollout_data"].items() if name not in _WHOLE}
    indices = data.pop("sample_indices")
    for i, index in enumerate(indices):
        held = {name: c[i] for name, c in data.items() if hasattr(c, "__len__") and len(c) == len(indices)}
        yield {**row({**held, "index": int(index)}, i), "step": int(content["rollout_id"])}
