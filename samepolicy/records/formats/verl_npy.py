"""A folder of verl's probability-difference monitor: prob_diff_step_N.npy beside prob_mask_step_N.npy.

Such a folder holds neither side's log-probs, so the run has `prob_diff`, `mask` and `sample` only, and `step` where the
names have one. Rows are cut after their last valid token, and positions before it keep their place; the padded shapes
stand in `info["shapes"]`, by step.
"""

import re
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.errors import CorruptFileError, InputError, ShapeError
from samepolicy.metrics import columns
from samepolicy.records.dumps import USUAL, Options
from samepolicy.records.publish import new_folder, publish_new
from samepolicy.records.run import Run
from samepolicy.records.source import tell

_NAME = re.compile(r"prob_(diff|mask)(?:_step_(\d{1,18}))?\.npy")


def detect(path: Path) -> bool:
    """Whether the path is a folder with a file of the monitor."""
    return path.is_dir() and any(_NAME.fullmatch(entry.name) for entry in path.iterdir())


def read(path: Path, options: Options = USUAL) -> Run:
    """All steps of a folder, in order.

    Args:
        path: the folder.
        options: who is told of a step that cannot be read.

    Raises:
        InputError: no such folder, a file without its partner, or files with and without a step side by side.
        CorruptFileError: a file that is truncated, is no npy file or holds pickled objects.
        ShapeError: a pair of different shapes, or not [batch, time].
        MaskError: a mask with other values than 0 and 1.
    """
    if not detect(path):
        raise InputError(f"{path} is no folder with files of verl's monitor; give that folder.")
    names = [match for entry in path.iterdir() if (match := _NAME.fullmatch(entry.name))]
    steps = {match[2] for match in names}
    if None in steps and len(steps) > 1:
        raise InputError(f"{path} holds files with a step and files without; keep them in folders of their own.")
    pairs: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for step in sorted(steps, key=lambda step: int(step or 0)):
        try:
            pairs[step or ""] = _read_step(path, step)
        except CorruptFileError as error:
            tell(error, options.on_bad)
    if not pairs:
        raise CorruptFileError(f"None of the {len(steps)} steps in {path} can be read; copy them again.")
    shapes = {step: list(diff.shape) for step, (diff, _) in pairs.items()}
    runs = [_run(step, diff, mask) for step, (diff, mask) in pairs.items()]
    return replace(Run.concat(runs), info={"source": "verl_npy", "shapes": shapes})


def write(run: Run, path: Path) -> None:
    """Write a run as a new folder with a pair of files for each step: what differs, float32, and the mask, bool.

    Rows are padded to the shapes in `info["shapes"]` where the run brings them, else to the longest response.

    Args:
        run: with `prob_diff`, or with both sides' log-probs.
        path: the folder to make.

    Raises:
        InputError: the folder is there already and not empty.
        MissingColumnError: the run has neither.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write(Run.from_lists(prob_diff=[[0.5, 0.25], [0.125]], step=[7, 7]), Path(folder) / "new")
    ...     np.load(Path(folder) / "new" / "prob_diff_step_7.npy").tolist()
    [[0.5, 0.25], [0.125, 0.0]]
    """
    run = run if "prob_diff" in run else run.aligned()
    diff = _difference(run)
    with new_folder(path) as folder:
        for step in np.unique(run["step"]).tolist() if "step" in run else [""]:
            rows = np.arange(len(run)) if step == "" else np.flatnonzero(run["step"] == step)
            valid = _padded(run.mask.take(rows), run.info.get("shapes", {}).get(str(step)))
            values = _padded(diff.take(rows), list(valid.shape)).astype(np.float32)
            end = f"_step_{step}.npy" if step != "" else ".npy"
            for kind, array in (("diff", np.where(valid, values, np.float32(0))), ("mask", valid)):
                publish_new(folder / f"prob_{kind}{end}", partial(_save, array))


def _save(array: np.ndarray, file: IO[bytes]) -> None:
    """Write one array to an open file; NumPy's own way to a file hides why the system refused."""
    content = BytesIO()
    np.save(content, array, allow_pickle=False)
    file.write(content.getbuffer())


def _difference(run: Run) -> Ragged:
    """Absolute difference of the two probabilities of each token."""
    if "prob_diff" in run:
        found: Ragged = run["prob_diff"]
        return found
    with np.errstate(all="ignore"):
        trainer, rollout = (np.exp(run[f"{side}_logp"].values) for side in ("trainer", "rollout"))
        return Ragged(columns.prob_diff(trainer, rollout), run.offsets)


def _padded(column: Ragged, shape: list[int] | None) -> np.ndarray:
    """Rows of one length, zeros behind their end."""
    longest = int(column.lengths.max(initial=0))
    width = shape[1] if shape and shape[0] == len(column) and shape[1] >= longest else longest
    found = np.zeros((len(column), width), dtype=column.values.dtype)
    found[np.arange(width) < column.lengths[:, None]] = column.values
    return found


def _read_step(path: Path, step: str | None) -> tuple[np.ndarray, np.ndarray]:
    """The differences and the mask of one step, of one shape."""
    end = ".npy" if step is None else f"_step_{step}.npy"
    diff, mask = (load(path / f"prob_{kind}{end}") for kind in ("diff", "mask"))
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


def load(file: Path) -> np.ndarray:
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
