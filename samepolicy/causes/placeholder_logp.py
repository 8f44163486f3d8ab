"""A constant stands where there is no log-prob."""

from collections.abc import Iterator

import numpy as np
from numpy.random import Generator

from samepolicy.causes.base import POSSIBLE, Cause, Check, Rung, Undone
from samepolicy.causes.constants import Constant, constants
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import toy_run
from samepolicy.causes.mask_misplaced import MaskMisplaced
from samepolicy.causes.stop_handling import tails
from samepolicy.records.run import Run

ENDS = 0.9
"""Where so many of the constants are last tokens, it is an end token."""

ONE = 0.9
"""Where so many of the constants stand at one id, it is named."""


class PlaceholderLogp(Cause):
    """A constant stands in for log-probs that one side does not have.

    What happens    Missing log-probs are filled with 0, 1, -9999 or NaN: the engine returned none for a token, a row
                    was retried, or the loss ignores an id that is pad and end token at once.
    How it shows    One exact constant at tokens that are not certain at all; a filled 0 makes the ratio p, not 1.
    How to confirm  Count the values of the column that occur bit by bit more than a few times.
    How to fix      Set the mask to 0 where there is no value; never fill with a number that a log-prob can be. vLLM:
                    logprobs=0 or more, and the sampled token's entry; SGLang: return_logprob with
                    logprob_start_len; verl: calculate_log_probs=True for every rollout; TRL: a pad token that is not
                    the end token; ms-swift, Megatron: ignore_index=-100, not the pad id, in the loss.
    References      TRL issue 2496 (INVALID_LOGPROB); TorchRL pull request 2856; SkyRL pull request 1070
    """

    rung = Rung.TOKENS
    cost = 0
    separate = "list the most frequent exact values of both log-prob columns"

    def check(self, evidence: Evidence) -> Check:
        """Constants that are neither ends nor edges of the mask nor what stands behind a stop."""
        for constant in constants(evidence):
            ends = sum(part.size for part in constant.stretches if part.end)
            elsewhere = MaskMisplaced().check(evidence).status == "proved" or tails(evidence, constant)
            if ends <= ENDS * constant.count and not elsewhere:
                return self._proved(evidence, constant)
        return POSSIBLE

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """Only what arrays prove."""
        yield from ()

    def reproduce(self, rng: Generator) -> Run:
        """The rollout has no log-prob for one in eight tokens, and 0 is filled in."""
        run = toy_run(rng)
        values = run["rollout_logp"].values.copy()
        values[rng.random(len(values)) < 0.125] = 0.0
        return run.with_columns(rollout_logp=run["rollout_logp"].with_values(values))

    def _proved(self, evidence: Evidence, constant: Constant) -> Check:
        """The answer, with what the tokens have in common."""
        known = float(np.nanmean(constant.known[constant.odd]))
        counted = int(evidence.run.mask.values.sum())
        sentence = (
            f"the {constant.side}'s log-prob is {constant.told} at {constant.count} of {counted} tokens, where it is "
            f"{known:.2g} nats otherwise{_common(evidence, constant)}"
        )
        value = constant.value if np.isfinite(constant.value) else str(constant.value)
        return Check(
            status="proved",
            sentence=sentence,
            side=constant.side,
            settings=constant.settings,
            parameters={"value": value, "tokens": constant.count},
        )


def _common(evidence: Evidence, constant: Constant) -> str:
    """What the tokens have in common: whole responses, or one id."""
    whole = sum(part.whole for part in constant.stretches)
    if whole == len(constant.stretches):
        return f", in all of {whole} responses"
    if "response_ids" not in evidence.run:
        return ""
    ids, counts = np.unique(evidence.run["response_ids"].values[constant.odd], return_counts=True)
    return f", nearly all of them id {ids[counts.argmax()]}" if counts.max() >= ONE * constant.count else ""
