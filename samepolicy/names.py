"""The names that other frameworks' users know: for each logged key, which of our readouts it is. The only such table.

A key is added by adding a line. `empty` is what a framework counts a response without tokens as; ours leaves it out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from samepolicy.errors import InputError


@dataclass(frozen=True)
class Key:
    """Where a logged number comes from.

    Attributes:
        metric: our metric's id.
        readout: which of its readouts.
        empty: the value that the framework gives a response without tokens, which then enters its mean; None leaves
            it out.
    """

    metric: str
    readout: str = "mean"
    empty: float | None = None


@dataclass(frozen=True)
class Framework:
    """The keys of one framework.

    Attributes:
        source: where its definitions stand.
        keys: each logged key.
        verified: version whose own functions our numbers were compared with in the tests; empty = read, not run.
        valid: key that is 1 where there was a token to measure, else 0.
    """

    source: str
    keys: Mapping[str, Key] = field(default_factory=dict)
    verified: str = ""
    valid: str = ""


def _off_policy(prefix: str, k3: str, chi2_seq: str) -> dict[str, Key]:
    """The off-policy diagnostics that verl and ms-swift both log; they differ in clamps and in the sequence weight."""
    return {
        f"{prefix}/kl": Key("k1"),
        f"{prefix}/k3_kl": Key(k3),
        f"{prefix}/training_ppl": Key("trainer_ppl", empty=1.0),
        f"{prefix}/training_log_ppl": Key("trainer_log_ppl", empty=0.0),
        f"{prefix}/rollout_ppl": Key("rollout_ppl", empty=1.0),
        f"{prefix}/rollout_log_ppl": Key("rollout_log_ppl", empty=0.0),
        f"{prefix}/log_ppl_diff": Key("log_ppl_diff", empty=0.0),
        f"{prefix}/log_ppl_abs_diff": Key("log_ppl_abs_diff", empty=0.0),
        f"{prefix}/log_ppl_diff_max": Key("log_ppl_diff", "max", empty=0.0),
        f"{prefix}/log_ppl_diff_min": Key("log_ppl_diff", "min", empty=0.0),
        f"{prefix}/ppl_ratio": Key("ppl_ratio", empty=1.0),
        f"{prefix}/chi2_token": Key("chi2_token_clamped", "chi2"),
        f"{prefix}/chi2_seq": Key(chi2_seq, "chi2", empty=0.0),
    }


FRAMEWORKS: dict[str, Framework] = {
    "verl": Framework(
        source="verl.utils.debug.metrics.calculate_debug_metrics; "
        "verl.trainer.ppo.rollout_corr_helper.compute_offpolicy_metrics",
        verified="0.9.1",
        valid="training/rollout_probs_diff_valid",
        keys={
            "training/rollout_probs_diff_max": Key("prob_diff", "max"),
            "training/rollout_probs_diff_mean": Key("prob_diff", "mean"),
            "training/rollout_probs_diff_std": Key("prob_diff", "std"),
            "training/rollout_actor_probs_pearson_corr": Key("prob_corr", "pearson"),
            "debug/consistency_rel_diff": Key("rel_diff"),
            **_off_policy("rollout_corr", "k3", "chi2_seq_product_clamped"),
        },
    ),
    "swift": Framework(
        source="swift.rlhf_trainers.grpo_trainer.GRPOTrainer._compute_rollout_offpolicy_metrics",
        verified="4.6.0",
        keys=_off_policy("rollout_correction", "k3_clamped", "chi2_seq_clamped"),
    ),
    "nemo-rl": Framework(
        source="https://github.com/NVIDIA-NeMo/RL (loss functions)",
        keys={"token_mult_prob_error": Key("mult_error")},
    ),
    "slime": Framework(
        source="https://github.com/THUDM/slime (loss)",
        keys={"train/train_rollout_logprob_abs_diff": Key("logp_diff")},
    ),
    "prime-rl": Framework(
        source="https://github.com/PrimeIntellect-ai/prime-rl (loss)",
        keys={"mismatch_kl/mean": Key("k3")},
    ),
    "tinker": Framework(
        source="https://github.com/thinking-machines-lab/tinker-cookbook (metrics)",
        keys={"optim/kl_sample_train_v1": Key("k1"), "optim/kl_sample_train_v2": Key("k2")},
    ),
}


def framework(names: str) -> Framework:
    """The table of one framework.

    Raises:
        InputError: no framework of this name; the message lists them.
    """
    if names not in FRAMEWORKS:
        raise InputError(f"There are no names {names!r}; choose samepolicy, {', '.join(FRAMEWORKS)}.")
    return FRAMEWORKS[names]


def metrics_of(names: str) -> frozenset[str]:
    """The metrics that a framework's keys read; none for our own names, which read every metric."""
    return frozenset() if names == "samepolicy" else frozenset(k.metric for k in framework(names).keys.values())


def flat_names(summary: Any, names: str) -> dict[str, float]:
    """The numbers of a Summary under flat names.

    Args:
        summary: a `Summary` measured with the same names.
        names: "samepolicy" or a framework.

    Returns:
        One number per key; a framework's key whose columns were not there is left out.

    >>> from samepolicy.metrics import all_metrics
    >>> metrics_of("tinker") <= set(all_metrics())
    True
    """
    if names == "samepolicy":
        counts = {f"samepolicy/counts/{k}": v for k, v in vars(summary.counts).items()}
        return counts | {f"samepolicy/{n}/{k}": v for n, m in summary.metrics.items() for k, v in m.items()}
    table = framework(names)
    lacking = sorted(metrics_of(names) - {*summary.statistics} - {*summary.missing})
    if lacking:
        raise InputError(f"{lacking[0]} was not measured; measure with names={names!r} to read {names}'s keys.")
    found = {key: _read(summary, k) for key, k in table.keys.items() if k.metric not in summary.missing}
    return ({table.valid: float(summary.counts.measured > 0)} if table.valid else {}) | found


def _read(summary: Any, key: Key) -> float:
    """One readout, with empty responses counted where the framework counts them."""
    readouts = summary[key.metric]
    value: float = readouts[key.readout]
    empty = summary.counts.empty_sequences
    if key.empty is None or not empty or not readouts["count"]:
        return value
    if key.readout in ("max", "min"):
        return {"max": max, "min": min}[key.readout](value, key.empty)
    mean: float = (value * readouts["count"] + key.empty * empty) / (readouts["count"] + empty)
    return mean
