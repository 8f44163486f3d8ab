"""ms-swift (GRPO), compared with the functions of ms-swift 4.6.0."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samepolicy.arrays import array_namespace
from samepolicy.corrections.band import Band
from samepolicy.corrections.base import Step, WatchStep, Work, check_bounds
from samepolicy.corrections.correction import Correction
from samepolicy.corrections.frameworks import one_of
from samepolicy.corrections.off_policy_mask import OffPolicyMask
from samepolicy.corrections.statistics import Stats
from samepolicy.corrections.truncate import Truncate
from samepolicy.errors import InputError

BOUND = 20.0
"""ms-swift clamps each token's log-ratio to this, and takes the mean over a sequence after it."""
MODES = (None, "token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
ENGINE = "0.10.2"
"""The first vLLM that returns processed log-probs."""
_log = logging.getLogger("samepolicy")


def correction(
    *,
    rollout_importance_sampling_mode: str | None = None,
    rollout_importance_sampling_threshold: float = 2.0,
    log_rollout_offpolicy_metrics: bool = False,
    off_policy_sequence_mask_delta: float | None = None,
    vllm_version: str | None = None,
    has_teacher: bool = False,
) -> Correction:
    """The correction that these flags of ms-swift mean.

    `token_truncate` min(ρ, τ); `token_mask` ρ if ρ ≤ τ else 0; `sequence_truncate` min(ρ_geo, τ); `sequence_mask` 0
    where ρ_geo > τ. Under `sequence_mask` a kept sequence carries its tokens' own ratios, as ms-swift's code does; its
    written formula says ρ_geo, which is `Band(None, τ, over="geometric", clamp=20.0)`. There is no lower bound. The
    weight multiplies the per-token loss with the β·KL term already in it.

    Divides by: the completion mask, weights of 0 included; a sequence that `off_policy_sequence_mask_delta` drops
    leaves the mask, but with loss_type grpo it still counts among the sequences.

    Args:
        rollout_importance_sampling_mode: one of the four modes; None is off.
        rollout_importance_sampling_threshold: τ, above 0.
        log_rollout_offpolicy_metrics: measure without correcting; a mode measures by itself. Needs no step here.
        off_policy_sequence_mask_delta: drop sequences that moved by more than this and have a negative advantage.
        vllm_version: the engine's version where it is known; before 0.10.2 a mode is refused and metrics stay off.
        has_teacher: a distillation teacher adds per-token advantages, so no sequence has one sign.

    Raises:
        InputError: an unknown mode, τ ≤ 0, a mode with an older engine, or a sequence mask together with a teacher.

    Reference: ms-swift, `GRPOTrainer._apply_rollout_importance_sampling`.
    """
    mode, above, delta = (
        rollout_importance_sampling_mode,
        rollout_importance_sampling_threshold,
        off_policy_sequence_mask_delta,
    )
    one_of("rollout_importance_sampling_mode", mode, MODES)
    check_bounds("rollout_importance_sampling_threshold", None, above)
    _check_engine(vllm_version, mode, log_rollout_offpolicy_metrics)
    if has_teacher and delta is not None:
        raise InputError(
            "off_policy_sequence_mask_delta needs one advantage per sequence, which a distillation teacher's per-token "
            "advantages do not give; leave one of them out."
        )
    _log_mask(delta is not None)
    weigh = {
        "token_truncate": Truncate(above, clamp=BOUND),
        "token_mask": Band(None, above, clamp=BOUND),
        "sequence_truncate": Truncate(above, over="geometric", clamp=BOUND),
        "sequence_mask": Band(None, above, over="geometric", weight="token", clamp=BOUND),
    }
    steps: list[Step] = [weigh[mode], LoggedWeights(above, per_sequence=mode.startswith("sequence"))] if mode else []
    return Correction(*steps, *([OffPolicyMask(delta)] if delta is not None else []))


def _check_engine(version: str | None, mode: str | None, metrics: bool) -> None:
    """Refuse a mode with an engine too old for it; warn that metrics stay off."""
    if version is None or _numbers(version) >= _numbers(ENGINE):
        return
    if mode is not None:
        raise InputError(
            f"rollout_importance_sampling_mode={mode!r} needs the processed log-probs of vLLM {ENGINE} or newer, but "
            f"this is vLLM {version}; update vLLM or leave the mode out."
        )
    if metrics:
        _log.warning(
            "vLLM %s has no processed log-probs (%s has): off-policy metrics and correction are off.", version, ENGINE
        )


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version; `0.10.2rc1` counts as 0.10.2."""
    found = re.match(r"\d+(\.\d+)*", version)
    if found is None:
        raise InputError(f"{version!r} is no version of vLLM; write it like {ENGINE}.")
    return tuple(int(n) for n in found[0].split("."))


_said: set[bool] = set()


def _log_mask(on: bool) -> None:
    """The line that ms-swift logs at the start of training, once for each setting."""
    if on not in _said:
        _said.add(on)
        _log.info("offpolicy_sequence_mask: %s", "enable" if on else "disable")


@dataclass(frozen=True)
class LoggedWeights(WatchStep):
    """Sums behind the keys that ms-swift logs of its weights, taken before any sequence is dropped.

    Args:
        above: τ.
        per_sequence: whether the share clipped is one of sequences, not of tokens.
    """

    above: float
    per_sequence: bool = False

    def watch(self, work: Work) -> Mapping[str, Any]:
        """Tokens, Σw, and Σ and Σ of squares of the weights held to [1/τ, τ]."""
        xp = array_namespace(work.sampled)
        low = min(1 / self.above, self.above)  # with τ < 1 their bounds cross, and every weight is held to τ
        held = xp.where(work.sampled, xp.clip(work.weight, low, self.above), 0.0)
        clipped = work.counts["clipped_sequences" if self.per_sequence else "clipped_tokens"]
        whole = work.lengths.shape[0] if self.per_sequence else xp.count_nonzero(work.sampled)
        if self.per_sequence and self.above < 1:  # an empty sequence counts as ρ_geo = 1
            clipped = clipped + xp.count_nonzero(work.lengths == 0)
        return {
            "swift.tokens": xp.count_nonzero(work.sampled),
            "swift.weight": xp.sum(xp.where(work.sampled, work.weight, 0.0)),
            "swift.held": xp.sum(held),
            "swift.held_squared": xp.sum(held * held),
            "swift.clipped": clipped,
            "swift.whole": whole,
        }


def flat(stats: Stats) -> dict[str, float]:
    """The three keys that ms-swift logs where a mode is on, prefix `rollout_correction/`.

    `ess` is that of weights held to [1/τ, τ]: it cannot fall below 4/(τ + 1/τ)², 0.64 at τ = 2, however far apart the
    policies are. `stats.applied.ess_token` can. `clipped_frac` is a share of tokens or, in the sequence modes, of all
    sequences.
    """
    s = stats.sums
    if "swift.tokens" not in s:
        raise InputError("ms-swift logs weights only where a mode is on; set rollout_importance_sampling_mode.")
    n = s["swift.tokens"]
    nan = float("nan")
    return {
        "rollout_correction/ess": s["swift.held"] ** 2 / (n * s["swift.held_squared"]) if n else nan,
        "rollout_correction/is_weight_mean": s["swift.weight"] / n if n else nan,
        "rollout_correction/clipped_frac": s["swift.clipped"] / s["swift.whole"] if s["swift.whole"] else nan,
    }
