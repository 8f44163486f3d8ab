"""What settings predict for the sampled ids, from the trainer's own distribution."""

from dataclasses import dataclass

import numpy as np

from samepolicy.records.side import Sampling


@dataclass(frozen=True, kw_only=True)
class Known:
    """The trainer's own distribution at some tokens, and what was recorded there.

    Attributes:
        recorded: what the rollout recorded, nats [tokens].
        own: the trainer's log-prob of the same ids, nats [tokens].
        head: log-probs of the likeliest ids, most likely first, nats [tokens, k].
        tail: mean log-prob of each chunk of all other ids, nats [tokens, chunks].
        counts: how many ids each chunk stands for, [tokens, chunks].
        owner: the sequence of each token, [tokens].
    """

    recorded: np.ndarray
    own: np.ndarray
    head: np.ndarray
    tail: np.ndarray
    counts: np.ndarray
    owner: np.ndarray


def predicted(known: Known, sampling: Sampling) -> np.ndarray:
    """What settings predict for the sampled ids, nats [tokens]; -inf outside the kept set.

    log p(y)/T - log Σ p^(1/T) - log(kept mass), in the order temperature, top-k, top-p, min-p.
    """
    return cut(*tempered(known, sampling.temperature), sampling)


def tempered(known: Known, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of the head and log-probs of the sampled ids at a temperature."""
    head, tail = known.head / temperature, known.tail / temperature
    top = head[:, :1]
    mass = np.exp(head - top).sum(axis=1) + (known.counts * np.exp(tail - top)).sum(axis=1)
    total = top[:, 0] + np.log(mass)
    return np.exp(head - total[:, None]), known.own / temperature - total


def cut(likely: np.ndarray, own: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Log-probs over the kept set; a set that reaches beyond the head keeps all of the rest."""
    kept, mass = np.ones_like(likely, dtype=bool), np.ones(len(own))
    if 0 < sampling.top_k <= likely.shape[1]:
        kept[:, sampling.top_k :] = False
        mass = (likely * kept).sum(axis=1)
    if sampling.top_p < 1:
        kept &= np.cumsum(likely, axis=1) - likely < sampling.top_p * mass[:, None]
        reached = np.where(kept[:, -1], sampling.top_p * mass, 0)
        mass = np.maximum((likely * kept).sum(axis=1), reached)
    if sampling.min_p > 0:
        kept &= likely >= sampling.min_p * likely[:, :1]
        mass = (likely * kept).sum(axis=1)
    least = np.where(kept, likely, np.inf).min(axis=1)
    inside = kept[:, -1] | (np.exp(own) >= least * (1 - 1e-3))
    return np.where(inside, own - np.log(mass), -np.inf)
