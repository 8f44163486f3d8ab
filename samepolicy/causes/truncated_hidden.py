"""The sampler was another than the recorded log-probs say."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Generator

from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import TOKENS, toy_run
from samepolicy.causes.surprisal import Surprisal, clustered, surprisal
from samepolicy.records.declared import samplings
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

CLEAR = 4.0
"""Standard errors by which the surprisal gap must differ from 0."""

UNCLEAR = 3.0
"""Where the trainer's own entropy shows fewer standard errors than this, nothing is scored again."""

CLOSED, OUTSIDE = 0.8, 0.01
"""A sampler is named if it closes this share of the gap, with at most that share of the tokens outside its kept set."""

TEMPERATURES = tuple(np.geomspace(0.4, 2.5, 21).round(2).tolist())
TOP_P = (*np.linspace(0.5, 0.95, 10).round(2).tolist(), 0.97, 0.98, 0.99)
TOP_K = (2, 3, 5, 8, 10, 16, 20, 32, 40, 50, 64, 100)
MIN_P = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)


class TruncatedHidden(Cause):
    """Tokens were drawn from another distribution than the recorded log-probs are of.

    What happens    The engine samples with top-p, top-k, min-p or a temperature, and records raw log-probs.
    How it shows    d is at the rounding floor, yet the sampled tokens are likelier (less likely) than the recorded
                    distribution makes them: the mean surprisal differs from the mean entropy.
    How to confirm  Compare mean(-log p) with the mean entropy of the same places; sample once with top-p 1, top-k
                    off and temperature 1.
    How to fix      Turn truncation off for rollouts (vLLM: pass top_p=1, top_k=-1, min_p=0 in every request, since
                    generation_config.json fills what is left out, or generation_config="vllm"; SGLang:
                    sampling_defaults; verl, TRL, ms-swift: rollout top_p and top_k), or record processed log-probs and
                    let the importance weight see them.
    References      vLLM logprobs_mode; DeepSeek-V3.2, keep sampling mask
    """

    rung = Rung.SAMPLING
    proof = "surprisal"
    separate = "sample one batch with temperature 1, top-p 1, top-k off and min-p 0: the surprisal gap closes"

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The most likely sampler, if it closes the surprisal gap."""
        if not applies(evidence.run) or looks_drawn(evidence):
            return
        before = surprisal(evidence)
        if abs(before.errors) < CLEAR:
            return
        sampler = _likeliest(evidence)
        told = sampler.changed
        if not told:
            return
        after = surprisal(evidence, sampler)
        closed = 1 - abs(after.gap) / abs(before.gap)
        if closed >= CLOSED and after.outside <= OUTSIDE:
            yield Undone(parameters=told, side="rollout", sentence=_sentence(before, after, told, closed))

    def reproduce(self, rng: Generator) -> Run:
        """Sampled with top-p 0.7; raw log-probs recorded, and declared neutral."""
        sampling = Sampling(top_p=0.7, max_tokens=2 * TOKENS, logprobs="raw")
        neutral = Sampling(max_tokens=2 * TOKENS)
        return toy_run(rng, sampling=sampling, trainer_sampling=neutral, declared=neutral)


def looks_drawn(evidence: Evidence) -> bool:
    """Whether the trainer's recorded entropy, where it is of the declared distribution, shows no sign of a gap."""
    run, known = evidence.run, evidence.known
    if "trainer_entropy" not in run or known.cost or len(set(samplings(run))) > 1 or "trainer_response_ids" in run:
        return False
    tokens = evidence.comparable
    gap = -run["trainer_logp"].values[tokens] - run["trainer_entropy"].values[tokens]
    if not len(gap) or not np.isfinite(gap).all():
        return False
    return bool(abs(gap.mean()) < UNCLEAR * clustered(gap, evidence.prompt[tokens]))


def applies(run: Run) -> bool:
    """Whether what was sampled tells of the sampler: not where it was greedy, nor where responses were chosen."""
    sampling = run.rollout.sampling
    return not (sampling is not None and sampling.temperature == 0) and not run.info.get("filtered")


def _likeliest(evidence: Evidence) -> Sampling:
    """The sampler under which the tokens are most likely; one in a hundred may come from anywhere."""
    one = Sampling()
    candidates = [
        *(replace(one, temperature=t) for t in TEMPERATURES),
        *(replace(one, **{name: v}) for name, vs in (("top_p", TOP_P), ("top_k", TOP_K), ("min_p", MIN_P)) for v in vs),
    ]
    own = evidence.sampled(one)

    def likelihood(sampler: Sampling) -> float:
        drawn = evidence.sampled(sampler)
        return float(np.logaddexp(np.log1p(-OUTSIDE) + drawn, np.log(OUTSIDE) + own).mean())

    best = max(candidates, key=likelihood)
    if best.temperature != 1:
        return best
    warm = [replace(best, temperature=t) for t in TEMPERATURES]
    warmest = max(warm, key=likelihood)
    return warmest if likelihood(warmest) > likelihood(best) + 0.01 else best


def _sentence(before: Surprisal, after: Surprisal, told: dict[str, Any], closed: float) -> str:
    """What was seen."""
    how = "likelier" if before.gap < 0 else "less likely"
    names = " and ".join(f"{name.replace('_', '-')} {value:.3g}" for name, value in told.items())
    return (
        f"sampled tokens are {how} than what was recorded makes them, by {abs(before.gap):.3g} nats per token "
        f"({abs(before.errors):.1f} standard errors); sampling with {names} explains {closed:.0%} of it, with "
        f"{after.outside:.2%} of the tokens outside"
    )
