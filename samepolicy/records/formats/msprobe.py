"""msProbe's saved tensors: data/NAME/stepN/rankR/micro_stepM/NAME.npy, as its SingleSave writes them.

The tensors are padded [batch, time] arrays under names that the training script chose. verl's names are understood
(rollout_log_probs, old_log_probs, response_mask, responses, ref_log_prob, advantages); others are taken with a map from
ours to theirs. A mask is needed, since nothing else tells padding. The pair of npy files that msProbe's guide to verl
describes is the format verl_npy.

Source: msProbe (commit 8ff00da3), python/msprobe/core/single_save/single_saver.py. Checked against a folder that this
class wrote from made-up tensors.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from samepolicy.errors import CorruptFileError, InputError
from samepolicy.records.dumps import USUAL, Options, named
from samepolicy.records.formats.verl_npy import load
from samepolicy.records.run import Run
from samepolicy.records.source import tell

MAPS = True
"""The reader applies the column map itself."""
OURS = {
    "mask": "response_mask",
    "rollout_logp": "rollout_log_probs",
    "trainer_logp": "old_log_probs",
    "response_ids": "responses",
    "ref_logp": "ref_log_prob",
    "advantage": "advantages",
}
PLACE = re.compile(r"step(\d+)/rank(\d+)(?:/micro_step(\d+))?")


def detect(path: Path) -> bool:
    """Whether the path is such a folder, or the dump folder above it."""
    return bool(_names(path))


def read(path: Path, options: Options = USUAL) -> Run:
    """All steps, ranks and micro-batches.

    Args:
        path: the dump folder, or its folder `data`.
        options: a column map, and who is told of a batch that cannot be read.

    Raises:
        InputError: no mask, or a name of the map that was not saved.
        CorruptFileError: a file that is truncated, is no npy file or holds pickled objects.
    """
    saved = _names(path)
    wanted = {ours: theirs for ours, theirs in {**OURS, **options.columns}.items() if theirs in saved}
    absent = [theirs for theirs in options.columns.values() if theirs not in saved]
    if absent or "mask" not in wanted:
        names, lacking = ", ".join(sorted(saved)) or "nothing saved", absent[0] if absent else "response_mask"
        raise InputError(f"{path} holds {names} but not {lacking}; name each column with a map, such as mask=NAME.")
    runs = []
    for place in _places(saved[wanted["mask"]]):
        try:
            runs.append(named(saved[wanted["mask"]] / place, lambda _, at=place: _batch(saved, wanted, at)))  # type: ignore[misc]
        except CorruptFileError as error:
            tell(error, options.on_bad)
    return Run.concat(runs)


def _names(path: Path) -> dict[str, Path]:
    """The folder of each name that was saved."""
    root = path / "data" if (path / "data").is_dir() else path
    if not root.is_dir():
        return {}
    return {f.name: f for f in sorted(root.iterdir()) if f.is_dir() and any(f.glob(f"step*/rank*/**/{f.name}.npy"))}


def _places(folder: Path) -> list[str]:
    """Where the batches of a name stand below its folder, by step, rank and micro-batch."""
    found = [f.parent.relative_to(folder).as_posix() for f in folder.glob(f"step*/rank*/**/{folder.name}.npy")]
    return sorted((p for p in found if PLACE.fullmatch(p)), key=_order)


def _order(place: str) -> tuple[int, int, int]:
    """Step, rank and micro-batch of a place."""
    match = PLACE.fullmatch(place)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)


def _batch(saved: dict[str, Path], wanted: dict[str, str], place: str) -> Run:
    """One batch as a run."""
    arrays = {ours: load(saved[theirs] / place / f"{theirs}.npy") for ours, theirs in wanted.items()}
    step, rank, micro = _order(place)
    rows = len(arrays["mask"])
    whole = {"step": step, "rank": rank, "micro_step": micro}
    single = {name: np.full(rows, value) for name, value in whole.items()}
    columns: dict[str, Any] = {**arrays, **single, "sample": np.arange(rows)}
    run = Run.from_padded(**columns)
    return Run(run.columns, info={"source": "msprobe"})
