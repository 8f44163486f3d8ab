"""verl: the token-level probability-difference monitor, and what of a verl batch are columns of ours.

`pip install samepolicy` is enough: verl loads `samepolicy.integrations.verl_plugin` in each of its processes.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from samepolicy.arrays import Array, to_bool, to_numpy
from samepolicy.monitor import prob_diff

LOG_PROBS = ("rollout_log_probs", "old_log_probs", "responses")
OPTIONAL = {
    "entropy": "trainer_entropy",
    "entropys": "trainer_entropy",
    "ref_log_prob": "ref_logp",
    "advantages": "advantage",
    "responses": "response_ids",
}
"""Columns of ours, by the name that verl has for them."""


def calculate_token_level_prob_diff(
    data: Any,
    save_dir: str | os.PathLike[str] | None = None,
    step: int | np.integer | None = None,
    token_max_print: int = 10,
    sample_max_print: int = 8,
) -> dict[str, float]:
    """How far the rollout's and the actor's probability of single tokens are apart, for verl's logger and as files.

    diff = abs(exp(rollout_log_probs) - exp(old_log_probs)) where the response mask is 1, else 0; float32.

    Args:
        data: a `DataProto`, any object with `.batch`, or a mapping, with `rollout_log_probs`, `old_log_probs` and
            `responses` [batch, response_length], and `response_mask`, else `attention_mask`, whose last
            response_length columns are taken.
        save_dir: folder to write `prob_diff_step_{step}.npy` (float32) and `prob_mask_step_{step}.npy` (bool) to before
            this returns; made if it is not there; None writes nothing.
        step: training step; without it the files are `prob_diff.npy` and `prob_mask.npy`.
        token_max_print: positions that get a key, at most.
        sample_max_print: samples that get a key, at most.

    Returns:
        Probability under `training/rollout_probs_diff/s{sample}_p{position:04d}` of the first samples and positions
        whose mask is 1; nothing where a column is missing.

    Raises:
        MaskError: the mask holds other values than 0 and 1.
        OSError: the files cannot be written.

    >>> logp = np.log([[0.5, 0.25]])
    >>> batch = {"rollout_log_probs": logp, "old_log_probs": np.zeros((1, 2)), "responses": np.array([[5, 6]])}
    >>> calculate_token_level_prob_diff(batch | {"attention_mask": np.array([[1, 1, 0]])})
    {'training/rollout_probs_diff/s0_p0000': 0.5}
    """
    found = log_probs(data)
    if not found:
        return {}
    if save_dir is not None:
        prob_diff.save_pair(save_dir, prob_diff.difference(**found), to_bool(found["mask"]), step=step)
    return prob_diff.grid(**found, samples=sample_max_print, positions=token_max_print)


def log_probs(data: Any) -> dict[str, Array]:
    """Both sides' log-probs and the mask of a batch of verl's; empty where one is missing."""
    batch = batch_of(data)
    mask = batch.get("response_mask", batch.get("attention_mask"))
    if mask is None or any(batch.get(name) is None for name in LOG_PROBS):
        return {}
    length = batch["responses"].shape[1]
    mask = mask[:, mask.shape[1] - length :]
    return {"trainer": batch["old_log_probs"], "rollout": batch["rollout_log_probs"], "mask": mask}


def columns(data: Any) -> dict[str, Any]:
    """What a batch of verl's holds, under our names: what `Monitor` and `measure_batch` take.

    Args:
        data: a `DataProto`, any object with `.batch`, or a mapping.

    Returns:
        `trainer`, `rollout` and `mask`, None where the batch lacks them, and the columns of a run that are there.
    """
    batch, extra = batch_of(data), getattr(data, "non_tensor_batch", None) or {}
    found: dict[str, Any] = {"trainer": None, "rollout": None, "mask": None, **log_probs(data)}
    if found["mask"] is None:
        return found
    shape = tuple(found["mask"].shape)
    for theirs, ours in OPTIONAL.items():
        if theirs in batch and tuple(batch[theirs].shape) == shape:
            found[ours] = batch[theirs]
    if "uid" in extra:
        found["group"] = [str(uid) for uid in extra["uid"]]
    if "prompts" in batch and "attention_mask" in batch:
        found["prompt_ids"] = _prompts(batch["prompts"], batch["attention_mask"])
    return found


def batch_of(data: Any) -> Mapping[str, Any]:
    """The tensors of a batch by name; empty where there is none."""
    held = data.batch if hasattr(data, "batch") else data
    return {} if held is None else {name: held[name] for name in held.keys()}  # noqa: SIM118 - a TensorDict iterates rows


def attach() -> bool:
    """Have verl's trainers call us beside their own metrics, in this process; what the plugin does.

    Returns:
        False where it was done before.
    """
    from samepolicy.integrations import verl_hook

    return verl_hook.attach()


def _prompts(prompts: Array, attention: Array) -> list[np.ndarray]:
    """Each prompt without its padding."""
    ids, flags = to_numpy(prompts), to_numpy(attention[:, : prompts.shape[1]]) == 1
    return [row[kept] for row, kept in zip(ids, flags, strict=True)]
