"""ms-swift: a callback for its GRPO trainers, Hugging Face and Megatron, and what of its batches are columns of ours.

A plugin file of two lines, for `--external_plugins plugin.py --callbacks samepolicy`:

    from samepolicy.integrations import swift
    swift.register(monitor="run/")
"""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from samepolicy.arrays import to_numpy
from samepolicy.corrections import Correction
from samepolicy.corrections.base import BatchMaskStep, ScaleStep
from samepolicy.errors import InputError

if TYPE_CHECKING:
    from samepolicy.integrations.swift_hook import Attached
    from samepolicy.monitor import Monitor

NAME = "samepolicy"
"""What `--callbacks` names."""
TAKEN = {"trainer": "old_per_token_logps", "rollout": "rollout_per_token_logps"}
OPTIONAL = {"ref_logp": "ref_per_token_logps", "advantage": "advantages"}
"""Columns of ours, and the name that ms-swift's `GRPOBatch` has for them."""


def columns(batch: Any) -> dict[str, Any]:
    """What batches of ms-swift's hold, under our names, packed: what `Monitor` and `measure_batch` take.

    Micro-batches are padded to lengths of their own, so their tokens are put one behind the other.

    Args:
        batch: a `GRPOBatch`, a micro-batch (a mapping with `grpo_batch`), or the list of micro-batches that a trainer's
            `_generate_and_score_completions` returns.

    Returns:
        `trainer` and `rollout` [tokens], None where a micro-batch lacks them, `mask` (all of it true), `offsets`
        [sequences + 1], and the columns of a run that every micro-batch has.

    >>> from types import SimpleNamespace
    >>> logp, mask = np.log([[0.5, 0.25]]), np.array([[True, False]])
    >>> held = SimpleNamespace(completion_mask=mask, old_per_token_logps=logp, rollout_per_token_logps=logp)
    >>> found = columns([{"grpo_batch": held}, {"grpo_batch": held}])
    >>> found["trainer"].round(3), found["offsets"]
    (array([-0.693, -0.693]), array([0, 1, 2]))
    """
    parts = [_part(one) for one in (batch if isinstance(batch, list | tuple) else [batch])]
    return merged(parts)


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Packed columns one behind the other; a column that a part lacks is left out."""
    lengths = np.concatenate([part["lengths"] for part in parts])
    tokens = int(lengths.sum())
    found: dict[str, Any] = {"mask": np.ones(tokens, bool), "offsets": np.concatenate([[0], np.cumsum(lengths)])}
    for name in (*TAKEN, *OPTIONAL, "response_ids"):
        held = [part[name] for part in parts if part.get(name) is not None]
        if len(held) == len(parts):
            found[name] = np.concatenate(held)
        elif name in TAKEN:
            found[name] = None
    return found


def _part(batch: Any) -> dict[str, Any]:
    """The sampled tokens of one micro-batch, on the host, and how many each sequence has."""
    inputs = batch if isinstance(batch, Mapping) else {}
    held = inputs.get("grpo_batch", batch)
    mask = to_numpy(held.completion_mask) == 1
    found: dict[str, Any] = {"lengths": mask.sum(1)}
    for ours, theirs in (TAKEN | OPTIONAL).items():
        values = getattr(held, theirs, None)
        if values is not None and tuple(values.shape) == mask.shape:
            found[ours] = to_numpy(values)[mask]
    ids, kept = inputs.get("model_inputs", {}).get("input_ids"), getattr(held, "logits_to_keep", None)
    if ids is not None and kept is not None and tuple(ids[:, -kept:].shape) == mask.shape:
        found["response_ids"] = to_numpy(ids[:, -kept:])[mask]
    return found


def attach(
    trainer: Any,
    *,
    correction: Correction | None = None,
    monitor: "Monitor | str | os.PathLike[str] | None" = None,
) -> "Attached":
    """Have one of ms-swift's GRPO trainers measure its samples, and correct its loss, from now on.

    Each generation step of all ranks is measured as a whole. Metrics go where the trainer's own do: under
    `rollout_correction/` where ms-swift logs none there itself, and under `samepolicy/`. With a correction, its weights
    stand in the place of those that `rollout_importance_sampling_mode` gives; without one, the loss is ms-swift's, bit
    for bit. After this call nothing is raised into training: what fails is counted (`samepolicy/swift/failed`) and said
    once.

    Divides by: the completion mask, as ms-swift does; a token that a step drops has weight 0. The weight multiplies the
    per-token loss with its β·KL term.

    Args:
        trainer: a `GRPOTrainer` or `MegatronGRPOTrainer` of ms-swift, before it trains.
        correction: what to do to the loss; None leaves it to ms-swift and its own switches.
        monitor: the monitor, or the run folder for one to be made; None makes one that keeps no files.

    Returns:
        What was attached; its `detach()` takes it away again.

    Raises:
        InputError: something that is no such trainer, one that is attached to already, or a correction that it cannot
            be given.
    """
    from samepolicy.integrations.swift_hook import GENERATE, Attached, logs_itself

    if not hasattr(trainer, GENERATE):
        raise InputError(f"{type(trainer).__name__} has no {GENERATE}; give a GRPO trainer of ms-swift.")
    if isinstance(getattr(vars(trainer).get(GENERATE), "__self__", None), Attached):
        raise InputError("This trainer is attached to already; call detach() on what attach gave back first.")
    if correction is not None:
        _check(correction, trainer)
    names = "samepolicy" if correction is not None or logs_itself(trainer) else "swift"
    return Attached(trainer, correction=correction, monitor=_monitor(monitor, names))


def register(
    *,
    correction: Correction | None = None,
    monitor: "Monitor | str | os.PathLike[str] | None" = None,
    name: str = NAME,
) -> None:
    """Make a callback of ms-swift's, for `--callbacks`, that attaches to the trainer when training begins.

    Call it in a file that `--external_plugins` names, which ms-swift imports before it makes a trainer. The callback
    goes into the table of Hugging Face trainers and, in a `megatron` command, into that of Megatron trainers.

    Args:
        correction: as in `attach`.
        monitor: as in `attach`.
        name: what `--callbacks` names.

    Raises:
        MissingDependencyError: ms-swift is not installed.
    """
    from samepolicy.integrations.swift_callbacks import hugging_face, megatron

    given = {"correction": correction, "monitor": monitor}
    hugging_face(name, given)
    if "swift.megatron" in sys.modules:
        megatron(name, given)


def _check(correction: Correction, trainer: Any) -> None:
    """Refuse what a place that is given log-probs of one micro-batch cannot do."""
    for step in correction.steps:
        more = {*step.needs} - {"trainer", "rollout"}
        if more:
            raise InputError(
                f"{step} needs {', '.join(sorted(more))}, which ms-swift does not hand over there; for the off-policy "
                "mask use its own switch off_policy_sequence_mask_delta."
            )
        if isinstance(step, BatchMaskStep | ScaleStep):
            raise InputError(f"{step} looks at the whole batch, but ms-swift corrects micro-batches; leave it out.")
    if getattr(trainer, "disable_rollout_importance_sampling", False):
        raise InputError(
            "ms-swift finds no vLLM with processed log-probs, so its correction is off; install vLLM 0.10.2 or newer, "
            "or leave the correction out."
        )


def _monitor(monitor: "Monitor | str | os.PathLike[str] | None", names: str) -> "Monitor":
    """The monitor given, or one made."""
    from samepolicy.monitor import Monitor

    return monitor if isinstance(monitor, Monitor) else Monitor(save_dir=monitor, names=names)
