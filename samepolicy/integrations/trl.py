"""TRL: one line attaches the monitor and a correction to a `GRPOTrainer`, inside its own generation step.

samepolicy.integrations.trl.attach(trainer, rollout_importance_sampling_mode="token_truncate")
trainer.train()
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from samepolicy.arrays import Array, to_numpy
from samepolicy.corrections import Correction
from samepolicy.errors import InputError

if TYPE_CHECKING:
    from samepolicy.integrations.trl_hook import Attached
    from samepolicy.monitor import Monitor

METRICS, MODE = "log_rollout_offpolicy_metrics", "rollout_importance_sampling_mode"
SWITCHES = (MODE, "rollout_importance_sampling_threshold", METRICS, "off_policy_sequence_mask_delta")
"""ms-swift's names of the same switches, which are accepted as arguments."""
OPTIONAL = {
    "advantages": "advantage",
    "ref_per_token_logps": "ref_logp",
    "completion_ids": "response_ids",
}
"""Columns of ours, by the name that TRL has for them."""


def columns(batch: Mapping[str, Any]) -> dict[str, Any]:
    """What a batch of TRL's holds, under our names: what `Monitor` and `measure_batch` take.

    Args:
        batch: what `GRPOTrainer._generate_and_score_completions` returns, or one of the micro-batches cut from it.

    Returns:
        `trainer`, `rollout` and `mask` [batch, time], None where the batch lacks them, and the columns of a run that
        are there.

    >>> logp = np.log([[0.5, 0.25]])
    >>> batch = {"completion_mask": np.array([[1, 1]]), "tool_mask": np.array([[1, 0]]), "old_per_token_logps": logp}
    >>> found = columns(batch)
    >>> found["mask"], found["trainer"] is logp, found["rollout"]
    (array([[1, 0]]), True, None)
    """
    mask = batch.get("completion_mask")
    if mask is not None and batch.get("tool_mask") is not None:
        mask = mask * batch["tool_mask"]
    names = {"trainer": "old_per_token_logps", "rollout": "sampling_per_token_logps"}
    found = {ours: batch.get(theirs) for ours, theirs in names.items()} | {"mask": mask}
    found |= {ours: batch[theirs] for theirs, ours in OPTIONAL.items() if batch.get(theirs) is not None}
    if batch.get("prompt_ids") is not None and batch.get("prompt_mask") is not None:
        found["prompt_ids"] = _prompts(batch["prompt_ids"], batch["prompt_mask"])
    return found


def attach(
    trainer: Any,
    *,
    correction: Correction | None = None,
    monitor: "Monitor | str | os.PathLike[str] | None" = None,
    divide_by: Literal["kept", "mask"] = "kept",
    **switches: Any,
) -> "Attached":
    """Have a trainer measure its samples, and correct its loss, from now on.

    Every generation step is seen with the log-probs that the engine sampled with and those that the trainer computed
    for the same tokens. Metrics go where the trainer's own go. With a correction, its weights stand in the place of
    TRL's importance-sampling ratio, whatever TRL's own switches say; without one, the loss is TRL's, bit for bit.
    After this call nothing is raised into training: what fails is counted (`samepolicy/trl/failed`) and said once.

    Args:
        trainer: a `GRPOTrainer` of TRL, before `train()`; one with a `rollout_func` that returns log-probs does, too.
        correction: what to do to the loss; None leaves it to TRL.
        monitor: the monitor, or the run folder for one to be made; None makes one that keeps no files.
        divide_by: tokens that a mask step drops leave the loss mask and with it the divisor, as in ms-swift ("kept"),
            or only get weight 0, as TRL's own off-policy mask has it ("mask"; their β·KL then stays).
        **switches: ms-swift's names: rollout_importance_sampling_mode, rollout_importance_sampling_threshold,
            log_rollout_offpolicy_metrics, off_policy_sequence_mask_delta. The monitor then logs ms-swift's keys.

    Returns:
        What was attached; its `detach()` takes it away again.

    Raises:
        InputError: an unknown switch, a correction given twice, one that the trainer's loss cannot take, something that
            is no such trainer, or one that is attached to already.
    """
    from samepolicy.integrations.trl_hook import HOOKED, Attached

    if not any(hasattr(trainer, name) for name in HOOKED):
        raise InputError(f"{type(trainer).__name__} has none of the methods of TRL's GRPOTrainer; give one of those.")
    if any(isinstance(getattr(vars(trainer).get(name), "__self__", None), Attached) for name in HOOKED):
        raise InputError("This trainer is attached to already; call detach() on what attach gave back first.")
    if divide_by not in ("kept", "mask"):
        raise InputError(f'There is no divide_by={divide_by!r}; choose "kept" or "mask".')
    correct = _correction(trainer, correction, switches)
    watch = _monitor(monitor, "swift" if switches else "samepolicy")
    return Attached(trainer, correction=correct, monitor=watch, divide_by=divide_by)


def _correction(trainer: Any, correction: Correction | None, switches: Mapping[str, Any]) -> Correction | None:
    """The correction that is asked for, one way or the other."""
    unknown = sorted({*switches} - {*SWITCHES})
    if unknown:
        raise InputError(f"attach has no switch {unknown[0]!r}; it has {', '.join(SWITCHES)}.")
    if correction is not None and set(switches) - {METRICS}:
        raise InputError("A correction is given twice, as correction= and by switches; leave one of them out.")
    if correction is None and switches:
        from samepolicy.integrations.trl_sides import vllm_version

        correction = Correction.from_swift(vllm_version=vllm_version(trainer), **switches)
        correction = correction if correction.steps else None
    if correction is not None and getattr(trainer, "loss_type", "") == "vespo":
        wide = [step for step in correction.steps if getattr(step, "over", "token") != "token"]
        if wide:
            raise InputError(f'The loss "vespo" sums token weights over a sequence, so it cannot take {wide[0]}.')
    return correction


def _monitor(monitor: "Monitor | str | os.PathLike[str] | None", names: str) -> "Monitor":
    """The monitor given, or one made."""
    from samepolicy.monitor import Monitor

    return monitor if isinstance(monitor, Monitor) else Monitor(save_dir=monitor, names=names)


def _prompts(prompts: Array, mask: Array) -> list[np.ndarray]:
    """Each prompt without its padding."""
    ids, flags = to_numpy(prompts), to_numpy(mask) == 1
    return [row[kept] for row, kept in zip(ids, flags, strict=True)]
