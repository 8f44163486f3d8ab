"""One side's log-probs are those of a truncated distribution."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Generator

from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import TOKENS, toy_run
from samepolicy.causes.settings import Settings
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling
from samepolicy.semantics.predict import cut

OUTSIDE = 0.03
"""Share of the sampled tokens that may lie outside of the kept set: rounding moves its edge."""

TOP_P = (*np.linspace(0.2, 0.95, 16).round(2).tolist(), 0.97, 0.98, 0.99, 0.995)
TOP_K = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 160, 200)
MIN_P = (0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)


class TruncatedSupport(Cause):
    """Log-probs over the kept set of top-p, top-k or min-p on one side, over all ids on the other.

    What happens    The sampler keeps the likely ids, renormalises, and records log-probs over those; the other side
                    scores with the whole vocabulary.
    How it shows    d = log of the kept mass, never above 0; where one id is kept, the recorded value is exactly 0. The
                    mean ratio is the mean kept mass (0.9 at top-p 0.8).
    How to confirm  Sample one batch with top-p 1, top-k off and min-p 0: the gap closes.
    How to fix      Train on what was sampled: turn truncation off for rollouts (top_p=1, top_k=-1, min_p=0 in vLLM,
                    SGLang, verl, TRL and ms-swift), or record raw log-probs and correct for the sampler, or replay the
                    kept set in the trainer's log-softmax.
    References      vLLM logprobs_mode; DeepSeek-V3.2, keep sampling mask
    """

    rung = Rung.SAMPLING
    separate = "sample one batch with top-p 1, top-k off and min-p 0 on both sides: the gap closes"

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The best top-p, top-k and min-p, each by itself, over the kept set and over all ids."""
        declared = {n: v for n, v in evidence.sampling.changed.items() if n in ("top_p", "top_k", "min_p")}
        if declared:
            yield self._found({name: getattr(Sampling(), name) for name in declared}, declared)
        own, likely = evidence.likely()
        for name, values in (("top_p", TOP_P), ("top_k", TOP_K), ("min_p", MIN_P)):
            value = _closest(evidence, np.exp(likely), own, name, values)
            value = _closest(evidence, np.exp(likely), own, name, _near(name, value))
            inside = np.isfinite(cut(np.exp(likely), own, replace(Sampling(), **{name: value})))
            if inside.mean() >= 1 - OUTSIDE:
                yield self._found({name: value}, declared)

    def reproduce(self, rng: Generator) -> Run:
        """Top-p 0.8 in the sampler and its log-probs, declared nowhere."""
        sampling = Sampling(top_p=0.8, max_tokens=TOKENS)
        return toy_run(rng, sampling=sampling, trainer_sampling=Sampling(), declared=Sampling(max_tokens=TOKENS))

    def _found(self, settings: dict[str, Any], declared: dict[str, Any]) -> Undone:
        """One kept set."""
        told = " and ".join(f"{name.replace('_', '-')} {value:.4g}" for name, value in settings.items())
        what = f"log-probs over the kept set of {told}" if settings != declared else "log-probs as declared"
        parameters = {**settings, **{f"declared_{name}": value for name, value in declared.items()}}
        return Undone(settings=Settings(**settings), parameters=parameters, sentence=f"the recorded values are {what}")


def _closest(evidence: Evidence, likely: np.ndarray, own: np.ndarray, name: str, values: Any) -> Any:
    """The value of a setting that predicts the probe best; a token outside the kept set counts as without one."""

    def loss(value: Any) -> float:
        predicted = cut(likely, own, replace(Sampling(), **{name: value}))
        return evidence.distance(np.where(np.isfinite(predicted), predicted, own))

    return min(values, key=loss)


def _near(name: str, value: Any) -> list[Any]:
    """Values around one that was found on a coarse grid."""
    if name == "top_k":
        return list(range(max(1, int(value * 0.75)), int(value * 1.25) + 2))
    if name == "top_p":
        steps = (value + np.arange(-8, 9) * 0.005).round(3).tolist()
        return [p for p in steps if 0 < p < 1]
    return [float(f"{value * factor:.2g}") for factor in np.geomspace(0.7, 1.4, 9)]
