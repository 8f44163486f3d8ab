"""A folder of verl's probability-difference monitor: prob_diff_step_N.npy beside prob_mask_step_N.npy.

Such a folder holds neither side's log-probs, so the run has `prob_diff`, `mask` and `sample` only, and `step` where the
names have one. Rows are cut after their last valid token, and positions before it keep their place; the padded shapes
stand in `info["shapes"]`, by step.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from samepolicy.errors import CorruptFileError, InputError, ShapeError
from samepolicy.records.run import Run

_NAME = re.compile(r"prob_(diff|mask)(?:_step_(\d{1,18}))?\.npy")


def detect(path: Path) -> bool:
    """Whether the path is a folder with a file of the monitor."""
    return path.is_dir() and any(_NAME.fullmatch(entry.name) for entry in path.iterdir())


def read(path: Path) -> Run:
    """All steps of a folder, in order.

    Args:
        path: the folder.

    Raises:
        InputError: a file without its partner, or files with and without a step side by side.
        CorruptFileError: a file that is truncated, is no npy file or holds pickled objects.
        ShapeError: a pair of different shapes, or not [batch, time].
        MaskError: a mask with other values than 0 and 1.
    """
    names = [match for entry in path.iterdir() if (match := _NAME.fullmatch(entry.name))]
    steps = {match[2] for match in names}
    if None in steps and len(steps) > 1:
        raise InputError(f"{path} holds files with a step and files without; keep them in folders of their own.")
    pairs = {step or "": _read_step(path, step) for step in sorted(steps, key=lambda step: int(step or 0))}
    shapes = {step: list(diff.shape) for step, (diff, _) in pairs.items()}
    runs = [_run(step, diff, mask) for step, (diff, mask) in pairs.items()]
    return replace(Run.concat(runs), info={"source": "verl_npy", "shapes": shapes})


def _read_step(path: Path, step: str | None) -> tuple[np.ndarray, np.ndarray]:
    """The differences and the mask of one step, of one shape."""
    end = ".npy" if step is None else f"_step_{step}.npy"
    diff, mask = (_load(path / f"prob_{kind}{end}") for kind in ("diff", "mask"))
    if diff.shape != mask.shape or diff.ndim != 2:
        raise ShapeError(
            f"prob_diff{end} has shape {list(diff.shape)} and prob_mask{end} {list(mask.shape)} in {path}; "
            "both must have one shape [batch, time], so one of them is not of this step."
        )
    return diff, mask


def _run(step: str, diff: np.ndarray, mask: np.ndarray) -> Run:
    """One step as a run."""
    run = Run.from_padded(mask=mask, prob_diff=diff, sample=np.arange(len(diff)))
    return run.with_columns(step=np.full(len(diff), int(step))) if step else run


def _load(file: Path) -> np.ndarray:
    """One array of numbers; nothing is ever unpickled, and a false size in the header reserves no memory."""
    if not file.is_file():
        partner = file.name.replace("mask", "diff") if "mask" in file.name else file.name.replace("diff", "mask")
        raise InputError(f"{file} is missing but {partner} is there; copy both files of the step.")
    with file.open("rb") as opened:
        magic = opened.read(len(np.lib.format.MAGIC_PREFIX))
    if magic != np.lib.format.MAGIC_PREFIX:
        raise CorruptFileError(f"{file} is no npy file (it may be truncated or pickled); copy it again.")
    try:
        array = np.array(np.lib.format.open_memmap(file, mode="r"))
    except (ValueError, OSError, EOFError, SyntaxError, OverflowError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        pickled = "Python objects" in reason
        why = "holds pickled Python objects, which could run code" if pickled else f"is truncated or damaged ({reason})"
        fix = "save it as an array of numbers" if pickled else "copy it again"
        raise CorruptFileError(f"{file} {why}; {fix}.") from error
    if array.dtype.kind not in "fiub":
        raise CorruptFileError(f"{file} holds values of type {array.dtype}, not numbers; it is not of verl's monitor.")
    return array
