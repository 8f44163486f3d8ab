"""One side applies another temperature than it declares."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import TOKENS, toy_run
from samepolicy.causes.reference import Reference
from samepolicy.causes.settings import ArrayStep, Settings
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

LOWEST, HIGHEST = 0.2, 5.0
SAME = 0.004
"""Two temperatures that are this close, as a share, are one."""


@dataclass(frozen=True)
class Scaled(ArrayStep):
    """Log-probs (not logits) divided by a temperature."""

    temperature: float

    def apply(self, predicted: np.ndarray, reference: Reference) -> np.ndarray:
        """log p / T."""
        return predicted / self.temperature


class Temperature(Cause):
    """Rollout and trainer apply different temperatures.

    What happens    One side divides the logits by the sampling temperature and the other does not (or twice, or by
                    another number); or it divides log-probs, which then no longer sum to probability 1.
    How it shows    No gap where the model is certain; the gap grows with entropy. At temperature 0.6 the ratio of the
                    first tokens sits at any cap.
    How to confirm  Sample one step at temperature 1 on both sides: the gap closes.
    How to fix      vLLM: logprobs_mode="processed_logprobs", which gives log-probs after the temperature. SGLang:
                    return log-probs after temperature scaling. verl, TRL, ms-swift: give the trainer the rollout's
                    temperature (actor_rollout_ref.rollout.temperature, GRPOConfig.temperature, --temperature) and
                    divide logits, not log-probs. Megatron: divide logits before the vocabulary-parallel softmax.
    References      TRL issue 4159; vLLM RFC 42259
    """

    rung = Rung.SAMPLING
    separate = "sample one batch at temperature 1, top-p 1, top-k off and penalty 1 on both sides: the gap closes"

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """Fit the temperature of the logits, then of the log-probs."""
        declared = evidence.sampling.temperature
        found = evidence.fit(lambda t: Settings(temperature=t), LOWEST, HIGHEST)
        if abs(found / declared - 1) > SAME:
            yield Undone(
                settings=Settings(temperature=found),
                parameters={"temperature": found, "declared": declared},
                sentence=f"at temperature {found:.4g} the reference gives what was recorded",
            )
        scale = evidence.fit(lambda t: Settings(arrays=(Scaled(t),)), LOWEST, HIGHEST)
        if abs(scale - 1) > SAME:
            yield Undone(
                settings=Settings(arrays=(Scaled(scale),)),
                parameters={"log_probs_divided_by": scale},
                sentence=f"the recorded values are log-probs divided by {scale:.4g}",
            )

    def reproduce(self, rng: Generator) -> Run:
        """The sampler draws at temperature 0.6 and records log-probs of temperature 1, as raw ones are."""
        raw = Sampling(temperature=0.6, max_tokens=TOKENS, logprobs="raw")
        processed = replace(raw, logprobs="processed")
        return toy_run(rng, sampling=raw, trainer_sampling=processed, declared=processed)
