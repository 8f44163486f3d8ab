"""verl: a policy loss in verl's own registry that corrects any other policy loss of verl's with our steps.

verl calls a policy loss once for each micro-batch. The correction turns the ratios into weights, which the loss beneath
multiplies its token losses with, and a mask, which it gets in the place of the response mask. What the sum is divided
by stays verl's choice: its engines count the tokens (or sequences) of the whole batch beforehand, so a dropped token
keeps its place in the divisor, as one that verl's v1 trainer rejects does.
"""

import math
from collections.abc import Callable
from typing import Any

from samepolicy.arrays import to_bool
from samepolicy.corrections import Stats
from samepolicy.corrections.base import WeightStep
from samepolicy.errors import InputError
from samepolicy.integrations import verl_loss_config as settings
from samepolicy.monitor.writer import Once

PREFIX = "samepolicy/correction"
LOGGED: dict[str, Callable[[Stats], float]] = {
    "ratio_mean": lambda s: s.raw.ratio_mean,
    "ess_token": lambda s: s.raw.ess_token,
    "weight_mean": lambda s: s.applied.weight_mean,
    "applied_ess_token": lambda s: s.applied.ess_token,
    "clipped": lambda s: s.clipped,
    "kept": lambda s: s.kept,
    "nonfinite": lambda s: s.nonfinite / s.tokens if s.tokens else math.nan,
}
"""What is logged of each micro-batch. verl averages it over micro-batches and ranks, so there is no largest or
smallest among it; `+trainer.samepolicy.save_dir=…` has those of the whole batch."""

_say = Once()
_asked: dict[str, settings.Asked] = {}
"""What each configuration seen asks for, since it is read anew for every micro-batch."""


def register() -> bool:
    """Put our policy loss into verl's registry, in this process.

    Returns:
        False where it was there before.
    """
    from verl.trainer.ppo import core_algos

    if settings.LOSS in core_algos.POLICY_LOSS_REGISTRY:
        return False
    core_algos.register_policy_loss(settings.LOSS)(policy_loss)
    return True


def policy_loss(
    old_log_prob: Any,
    log_prob: Any,
    advantages: Any,
    response_mask: Any,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Any = None,
) -> tuple[Any, dict[str, Any]]:
    """A policy loss of verl's, corrected; the signature is verl's.

    Args:
        old_log_prob: the trainer's log-probs when the batch was made [batch, time]; the rollout's in bypass mode.
        log_prob: the current policy's, with a gradient.
        advantages: of each token, same shape.
        response_mask: tokens to train on, same shape.
        loss_agg_mode: how verl sums the tokens' losses.
        config: verl's `ActorConfig`; `policy_loss.rollout_correction.samepolicy` says what to do.
        rollout_is_weights: the ratio of each token; see `verl_loss_config`.

    Returns:
        The loss and verl's metrics, ours among them (verl logs them below `actor/`). What fails is said once and
        counted in `samepolicy/correction/failed`; that micro-batch has verl's vanilla loss, without weights.
    """
    args = {"old_log_prob": old_log_prob, "log_prob": log_prob, "advantages": advantages, "config": config}
    args["loss_agg_mode"] = loss_agg_mode
    try:
        asked = _read(config)
        if asked.correction is None:
            return _beneath(asked.loss)(response_mask=response_mask, rollout_is_weights=rollout_is_weights, **args)
        weights, mask, stats = _corrected(asked, args, to_bool(response_mask), rollout_is_weights)
        found = {f"{PREFIX}/{name}": float(read(stats)) for name, read in LOGGED.items()}
    except Exception as error:
        return _vanilla(error, response_mask, args)
    loss, metrics = _beneath(asked.loss)(response_mask=mask, rollout_is_weights=weights, **args)
    return loss, {**metrics, **found, f"{PREFIX}/failed": 0.0}


def _read(config: Any) -> settings.Asked:
    """What the configuration asks for."""
    key = repr(settings.plain(config.policy_loss.get("rollout_correction")))
    if key not in _asked:
        _asked[key] = settings.read(config.policy_loss)
    return _asked[key]


def _beneath(name: str) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """A policy loss of verl's own."""
    from verl.trainer.ppo import core_algos

    if name == settings.REINFORCE:
        return _reinforce
    found: Callable[..., tuple[Any, dict[str, Any]]] = core_algos.get_policy_loss_fn(name)
    return found


def _reinforce(*, old_log_prob: Any, **args: Any) -> tuple[Any, dict[str, Any]]:
    """verl's loss without a ratio, called as those of the registry are."""
    from verl.trainer.ppo.core_algos import compute_policy_loss_reinforce

    found: tuple[Any, dict[str, Any]] = compute_policy_loss_reinforce(rollout_log_prob=old_log_prob, **args)
    return found


def _corrected(asked: settings.Asked, args: dict[str, Any], mask: Any, ratios: Any) -> tuple[Any, Any, Stats]:
    """Weights (None where no step gives any), the mask to train on, and what was done."""
    import torch

    correct = asked.correction
    assert correct is not None
    with torch.no_grad():
        current = args["log_prob"].detach()
        trainer = current if asked.bypass else args["old_log_prob"]
        rollout = args["old_log_prob"] if asked.bypass else None
        if rollout is None:
            if ratios is None:
                raise InputError(
                    "verl gave the loss no ratios; set algorithm.rollout_correction.rollout_is=token and "
                    f"rollout_is_threshold={settings.UNBOUNDED:g}, or use +{settings.SWITCH}=…, which does"
                )
            rollout = trainer - ratios.log()
        columns = {"current": current, "advantage": args["advantages"]}
        columns = {name: column for name, column in columns.items() if name in correct.needs}
        weights, keep, stats = correct(trainer=trainer, rollout=rollout, mask=mask, **columns)
        weighs = any(isinstance(step, WeightStep) for step in correct.steps)
        none_left = not bool(keep.any())  # where the loss itself counts tokens, it would divide by none
        return (weights if weighs or none_left else None), (mask if none_left else keep), stats


def _vanilla(error: Exception, mask: Any, args: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """verl's vanilla loss of a micro-batch that could not be corrected, which is counted and said once."""
    _say.because(
        error,
        "a micro-batch could not be corrected ({}); it has verl's vanilla loss without weights, and training goes on.",
    )
    loss, metrics = _beneath("vanilla")(response_mask=mask, rollout_is_weights=None, **args)
    return loss, {**metrics, **{f"{PREFIX}/{name}": math.nan for name in LOGGED}, f"{PREFIX}/failed": 1.0}
