"""Token by token, how far apart the two probabilities are: a grid of the first cells for a logger, and a pair of files.

The names are those that verl's users know; `records.formats.verl_npy` reads the files back.
"""

import os
import uuid
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from samepolicy.arrays import Array, array_namespace, is_torch, to_bool, to_numpy

VERL_GRID = "training/rollout_probs_diff"
"""What verl's users have in front of a cell's name."""


def difference(*, trainer: Array, rollout: Array, mask: Array) -> Array:
    """abs(exp T - exp R) of each token, 0 where the mask is 0.

    Args:
        trainer: log-probs under the policy that is trained, any float dtype [batch, time].
        rollout: log-probs under the policy that sampled, same shape.
        mask: 1 where the policy sampled the token, same shape; what it hides reaches no value.

    Returns:
        Probability, float32 of the same shape, where the input lives; a NaN under the mask stays one.

    Raises:
        MaskError: the mask holds other values than 0 and 1.

    >>> logp = np.log([[0.5, 0.25]])
    >>> difference(trainer=logp, rollout=np.zeros((1, 2)), mask=np.array([[1, 0]]))
    array([[0.5, 0. ]], dtype=float32)
    """
    xp, flags = array_namespace(trainer, rollout), to_bool(mask)
    held = [_float32(xp.where(flags, _detached(x), xp.zeros_like(x))) for x in (rollout, trainer)]
    with np.errstate(over="ignore", invalid="ignore"):  # what is no log-prob gives inf or NaN, which is seen
        return xp.abs(xp.exp(held[0]) - xp.exp(held[1]))


def grid(
    *, trainer: Array, rollout: Array, mask: Array, samples: int = 8, positions: int = 10, prefix: str = VERL_GRID
) -> dict[str, float]:
    """The difference of the first samples' first positions under a name each, with one copy to the host for all.

    Args:
        trainer: log-probs under the policy that is trained, [batch, time].
        rollout: log-probs under the policy that sampled, same shape.
        mask: 1 where the policy sampled the token, same shape; a cell with 0 has no key.
        samples: rows of the grid, at most.
        positions: columns of the grid, at most.
        prefix: what each name begins with.

    Returns:
        Probability of each cell under `{prefix}/s{sample}_p{position:04d}`.

    >>> grid(trainer=np.log([[0.5, 0.5]]), rollout=np.zeros((1, 2)), mask=np.array([[0, 1]]))
    {'training/rollout_probs_diff/s0_p0001': 0.5}
    """
    corner = slice(max(samples, 0)), slice(max(positions, 0))
    flags = to_bool(mask[corner])
    cells = difference(trainer=trainer[corner], rollout=rollout[corner], mask=flags)
    xp = array_namespace(cells)
    both = to_numpy(xp.stack([cells, xp.astype(flags, cells.dtype)]))
    return {f"{prefix}/s{s}_p{p:04d}": float(both[0, s, p]) for s, p in np.argwhere(both[1]).tolist()}


def save_pair(
    folder: str | os.PathLike[str], diff: Array, mask: Array, *, step: int | np.integer | None = None
) -> None:
    """Write the differences and the mask of one step, each file whole or not at all; those of an earlier try go.

    Args:
        folder: where to; made if it is not there.
        diff: probability, [batch, time], 0 where the mask is 0.
        mask: booleans of the same shape.
        step: training step, part of the names; None leaves it out.

    Raises:
        OSError: the disk is full, or the folder cannot be written.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     save_pair(place, np.zeros((1, 2)), np.ones((1, 2)), step=7)
    ...     sorted(file.name for file in Path(place).iterdir())
    ['prob_diff_step_7.npy', 'prob_mask_step_7.npy']
    """
    place, end = Path(folder), "" if step is None else f"_step_{int(step)}"
    place.mkdir(parents=True, exist_ok=True)
    arrays = {f"prob_diff{end}.npy": to_numpy(diff).astype(np.float32), f"prob_mask{end}.npy": to_numpy(mask) == 1}
    hidden = {name: place / f".{name}.{uuid.uuid4().hex}.tmp" for name in arrays}
    try:
        for name, array in arrays.items():
            content = BytesIO()  # NumPy's own way to a file hides why the system refused
            np.save(content, array, allow_pickle=False)
            with hidden[name].open("xb") as file:
                file.write(content.getbuffer())
                file.flush()
                os.fsync(file.fileno())
        (place / f"prob_diff{end}.npy").unlink(missing_ok=True)  # so that no kill leaves it beside another try's mask
        for name in reversed(arrays):
            hidden[name].replace(place / name)
    finally:
        for file_made in hidden.values():
            file_made.unlink(missing_ok=True)


def _detached(x: Array) -> Array:
    """The values alone, without their gradient."""
    return x.detach() if is_torch(x) else x


def _float32(x: Array) -> Any:
    """Values in float32."""
    return x.float() if is_torch(x) else x.astype(np.float32)
