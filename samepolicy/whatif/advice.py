"""Which correction to take, from what the rules did to the batch."""

from collections.abc import Sequence
from math import isfinite

from samepolicy.summary import Summary
from samepolicy.whatif.result import Advice, Outcome
from samepolicy.whatif.surrogate import Surrogate

CLOSE, RARE = 0.98, 1e-3
"""With an ESS of at least this and no larger share of ratios beyond a factor of 2, weights would change nothing."""
FAR, MANY = 0.3, 0.1
"""Below this ESS (verl's limit), or with this share of ratios beyond a factor of 2, there is a fault to find first."""
PROMPTS = 12
"""With fewer prompts the estimated errors of the surrogate decide nothing."""
LEAST = 0.9
"""A rule that keeps less than this share of the tokens is not advised."""
ALIKE = 1.01
"""Errors within this factor of the least are alike; the rule that comes first is taken."""
FEW = 0.05
"""Where no more than this share of the responses hold all far tokens, whole responses are the thing to drop."""


def advise(
    summary: Summary, outcomes: Sequence[Outcome], *, prompts: int, far: int, sequences_with_far: int, sequences: int
) -> Advice:
    """What to do about a batch.

    Args:
        summary: the batch as it is.
        outcomes: what each rule does.
        prompts: how many prompts the surrogates' errors rest on.
        far: tokens whose ratio is beyond a factor of 2, either way.
        sequences_with_far: responses with such a token.
        sequences: responses with tokens.

    Returns:
        A rule with its reason; "none" where no correction is needed.
    """
    if not summary.counts.measured:
        return Advice(rule=None, sentence="There is no token with both log-probs, so there is nothing to correct.")
    ess, share = summary["ess_token"]["ess"], summary["ratio_far"]["share"]
    facts = f"the raw token ESS is {ess:.3f} and {share:.2%} of the ratios are beyond a factor of 2"
    if ess >= CLOSE and share <= RARE:
        return Advice(rule="none", sentence=f"No correction needed: {facts}.")
    if ess < FAR or share > MANY:
        return Advice(
            rule=None,
            sentence=f"Find the cause before correcting: {facts}, which is more than rounding does and more than "
            "weights can mend; `samepolicy diagnose RUN` says where to look.",
        )
    return _by_error(outcomes, facts, prompts) or _by_tail(summary, facts, sequences_with_far / sequences, far)


def _by_error(outcomes: Sequence[Outcome], facts: str, prompts: int) -> Advice | None:
    """The rule whose surrogate is closest to the fully importance-weighted one, if that can be told."""
    if prompts < PROMPTS:
        return None
    judged = [
        (o, o.surrogate)
        for o in outcomes
        if o.surrogate and isfinite(o.surrogate.error) and o.kept >= LEAST and o.threshold != float("inf")
    ]
    if not judged:
        return None
    least = min(s.error for _, s in judged)
    best, surrogate = next((o, s) for o, s in judged if s.error <= least * ALIKE)
    why = f"of the rules that keep {LEAST:.0%} of the tokens or more, its surrogate has the least estimated error"
    if best.name == "none":
        return Advice(
            rule="none",
            sentence=f"No correction needed: {facts}, but uncorrected the surrogate has the least estimated error "
            f"({_sizes(surrogate)}).",
        )
    return Advice(rule=best.name, sentence=f"Take {best.label}: {facts}, and {why} ({_sizes(surrogate)}).")


def _by_tail(summary: Summary, facts: str, touched: float, far: int) -> Advice:
    """Without advantages: by where the far tokens are."""
    above, below = summary["ratio_above"]["share"], summary["ratio_below"]["share"]
    if far and touched <= FEW:
        rule, why = "tis-veto", f"all of these tokens are in {touched:.1%} of the responses, which a veto takes out"
    elif below > above:
        rule, why = "icepop", "most of these lie below, where truncation does nothing and a band cuts them off"
    else:
        rule, why = "tis", "most of these lie above, where truncation bounds them and keeps every token"
    return Advice(
        rule=rule, sentence=f"Take {rule}: {facts}, and {why}. Advantages in the run would tell what it costs."
    )


def _sizes(surrogate: Surrogate) -> str:
    """The two parts of an error in words."""
    bias, noise = abs(surrogate.from_weighted.value), surrogate.standard_error
    return f"{bias:.2g} from the fully importance-weighted one, with a standard error of {noise:.2g}"
