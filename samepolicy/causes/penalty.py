"""Repetition, presence or frequency penalties that act on one side only."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.random import Generator

from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import TOKENS, toy_run
from samepolicy.causes.settings import Settings
from samepolicy.causes.surprisal import clustered
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

LOWEST, HIGHEST = 0.6, 2.0
"""Repetition penalties that are tried."""

MOST = 2.0
"""The largest presence and frequency penalty that is tried, either way; engines take no more."""

SMALL = 0.01
"""A penalty that is this close to none is none."""

CLEAR = 3.0
"""Standard errors by which tokens seen before must differ from new ones, for penalties to be fitted at all."""


class Penalty(Cause):
    """A repetition, presence or frequency penalty acts on one side only.

    What happens    The sampler lowers the logits of ids that the text holds already and records log-probs after that;
                    the trainer scores without it. Nobody asked for it: engines take repetition_penalty from the
                    model's generation_config.json where a request leaves it out.
    How it shows    The sign of the gap follows "seen before": lower for ids that stand in the context, higher for new
                    ones. The arithmetic mean of the ratio stays near 1.000, the geometric mean does not (0.895 at
                    penalty 1.1).
    How to confirm  Sample one batch with repetition_penalty=1, presence_penalty=0 and frequency_penalty=0 in every
                    request: the gap closes. Print the engine's default sampling parameters.
    How to fix      Sample without penalties, and say so in every request. vLLM: SamplingParams(repetition_penalty=1.0),
                    or generation_config="vllm", so that generation_config.json fills nothing in. SGLang:
                    sampling_defaults="openai". verl: actor_rollout_ref.rollout.repetition_penalty=1.0. TRL:
                    GRPOConfig(repetition_penalty=1.0) and generation_kwargs. ms-swift: --repetition_penalty 1.
                    Megatron: apply the same penalty before the vocabulary-parallel softmax, or none at all.
    References      NeMo RL issue 3497 (generation_config.json and its repetition_penalty 1.1); prime-rl pull request
                    886; Keskar et al., CTRL (2019), section 4.1
    """

    rung = Rung.SAMPLING
    separate = "sample one batch with repetition penalty 1, presence and frequency penalty 0: the gap closes"

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """Fit each penalty by itself, then presence and frequency together, where seen ids differ from new ones."""
        declared = evidence.sampling.repetition_penalty
        if declared != 1:
            yield _found({"repetition_penalty": 1.0}, declared)
        if not _differs(evidence):
            return
        value = evidence.fit(lambda t: Settings(repetition_penalty=t), LOWEST, HIGHEST)
        if abs(value / declared - 1) > SMALL:
            yield _found({"repetition_penalty": value}, declared)
        presence = _added(evidence, lambda t: Settings(presence_penalty=t))
        frequency = _added(evidence, lambda t: Settings(frequency_penalty=t))
        for name, value in (("presence_penalty", presence), ("frequency_penalty", frequency)):
            if abs(value) > SMALL:
                yield _found({name: value}, declared)
        if min(abs(presence), abs(frequency)) > SMALL:
            yield from self._both(evidence, presence, declared)

    def reproduce(self, rng: Generator) -> Run:
        """The sampler applies repetition penalty 1.2, and nobody declares it."""
        sampling = Sampling(repetition_penalty=1.2, max_tokens=2 * TOKENS)
        neutral = replace(sampling, repetition_penalty=1.0)
        return toy_run(rng, sampling=sampling, trainer_sampling=neutral, declared=neutral)

    def _both(self, evidence: Evidence, presence: float, declared: float) -> Iterator[Undone]:
        """Both additive penalties, each fitted beside the other."""
        frequency = 0.0
        for _ in range(2):
            frequency = _added(evidence, partial(_pair, presence))
            presence = _added(evidence, partial(_pair, frequency=frequency))
        if min(abs(presence), abs(frequency)) > SMALL:
            yield _found({"presence_penalty": presence, "frequency_penalty": frequency}, declared)


def _found(settings: dict[str, Any], declared: float) -> Undone:
    """One or two penalties."""
    told = " and ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in settings.items())
    parameters = {**settings, **({"declared_repetition_penalty": declared} if declared != 1 else {})}
    sentence = f"with {told} the reference gives what was recorded"
    return Undone(settings=Settings(**settings), parameters=parameters, sentence=sentence)


def _pair(presence: float, frequency: float) -> Settings:
    """Both additive penalties."""
    return Settings(presence_penalty=presence, frequency_penalty=frequency)


def _added(evidence: Evidence, make: Callable[[float], Settings]) -> float:
    """An additive penalty of either sign, fitted as the factor that it puts on probabilities."""

    def settings(factor: float) -> Settings:
        return make(float(np.log(factor)))

    found = evidence.fit(settings, float(np.exp(-MOST)), float(np.exp(MOST)))
    return evidence.rounded(float(np.log(found)), lambda value: evidence.error(make(value)))


def _differs(evidence: Evidence) -> bool:
    """Whether the residual of ids that stand in the context differs from that of new ones, prompt included or not."""
    if "prompt_ids" not in evidence.run:
        return False
    fine = evidence.comparable & np.isfinite(evidence.residual)
    return any(_apart(evidence, seen, fine) for seen in _seen(evidence.run))


def _apart(evidence: Evidence, seen: np.ndarray, fine: np.ndarray) -> bool:
    """Whether two groups of tokens differ clearly in their mean residual, both being large enough to tell."""
    limit = CLEAR * evidence.floor[fine]
    values = np.clip(evidence.residual[fine], -20 * limit, 20 * limit)
    groups = [(values[seen[fine] == flag], evidence.prompt[fine][seen[fine] == flag]) for flag in (True, False)]
    if min(len(group) for group, _ in groups) < 8:
        return True
    errors = [clustered(group, owner) for group, owner in groups]
    return bool(abs(groups[0][0].mean() - groups[1][0].mean()) > CLEAR * np.hypot(errors[0], errors[1]))


def _seen(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Whether each token's id stands before it in its sequence, and in its response alone, bool [tokens] each."""
    whole, alone = np.zeros((2, int(run.offsets[-1])), dtype=bool)
    at = 0
    for prompt, response in zip(run["prompt_ids"], run["response_ids"], strict=True):
        before, own = {*prompt.tolist()}, set[int]()
        for token in response.tolist():
            whole[at], alone[at] = token in before or token in own, token in own
            own.add(token)
            at += 1
    return whole, alone
