"""Mistakes in what is recorded. Each maps a run's columns and a generator to other columns."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from _faults.base import Columns

Mistake: TypeAlias = Callable[[Columns, np.random.Generator], Columns]


def roll(by: int) -> Mistake:
    """The trainer's values by places later or earlier in each row."""
    return lambda columns, _: columns | {"trainer_logp": [np.roll(row, by) for row in columns["trainer_logp"]]}


def growing(pack: int) -> Mistake:
    """The trainer's values a place later for each sample before it in its pack."""
    return lambda columns, _: (
        columns | {"trainer_logp": [np.roll(row, i % pack) for i, row in enumerate(columns["trainer_logp"])]}
    )


def permuted(share: float) -> Mistake:
    """The trainer's rows in another order; values are cut or repeated to their new row's length."""

    def change(columns: Columns, rng: np.random.Generator) -> Columns:
        rows = columns["trainer_logp"]
        chosen = rng.permutation(len(rows))[: max(2, int(share * len(rows)))]
        order = np.arange(len(rows))
        order[chosen] = np.roll(chosen, 1)
        return columns | {"trainer_logp": [np.resize(rows[j], len(rows[i])) for i, j in enumerate(order)]}

    return change


def zero_ends(columns: Columns, _: np.random.Generator) -> Columns:
    """The rollout's last value is 0 in every row."""
    return columns | {"rollout_logp": [np.append(row[:-1], 0.0) for row in columns["rollout_logp"]]}


def constants(value: float, share: float) -> Mistake:
    """Some of the rollout's values are a constant that stands for "none"."""

    def change(columns: Columns, rng: np.random.Generator) -> Columns:
        rows = [np.where(rng.random(len(row)) < share, value, row) for row in columns["rollout_logp"]]
        return columns | {"rollout_logp": rows}

    return change


def counted_padding(count: int, pad: int = 2) -> Mistake:
    """Rows are padded with an id, both sides hold zeros there, and no mask leaves them out."""

    def change(columns: Columns, _: np.random.Generator) -> Columns:
        def longer(name: str, value: float) -> list[np.ndarray]:
            return [np.append(row, [value] * count) for row in columns[name]]

        ids = [[*row, *[pad] * count] for row in columns["response_ids"]]
        return columns | {"response_ids": ids} | {n: longer(n, 0.0) for n in ("rollout_logp", "trainer_logp")}

    return change


def cut_tails(count: int) -> Mistake:
    """The trainer cuts the ends of half of the responses, which a stop string ended."""

    def change(columns: Columns, _: np.random.Generator) -> Columns:
        ends = [len(row) - (count + i % 2) * (i % 2 == 0) for i, row in enumerate(columns["response_ids"])]
        return columns | {
            "trainer_response_ids": [row[:n] for row, n in zip(columns["response_ids"], ends, strict=True)],
            "trainer_logp": [row[:n] for row, n in zip(columns["trainer_logp"], ends, strict=True)],
            "finish_reason": ["stop" if i % 2 == 0 else "length" for i in range(len(ends))],
        }

    return change


def noise(size: float) -> Mistake:
    """A fault on no list: noise that has nothing to do with the model."""
    return lambda columns, rng: (
        columns
        | {"trainer_logp": [np.minimum(r + size * rng.standard_normal(len(r)), 0) for r in columns["trainer_logp"]]}
    )


def drift(size: float) -> Mistake:
    """A fault on no list: values sink with the position."""
    return lambda columns, _: (
        columns | {"trainer_logp": [r - size * np.arange(len(r)) / len(r) for r in columns["trainer_logp"]]}
    )


def filtered(highest: bool) -> Mistake:
    """No fault: half of the responses are kept, by a reward that goes with their length and likelihood."""

    def change(columns: Columns, _: np.random.Generator) -> Columns:
        reward = np.array([float(np.mean(row)) for row in columns["rollout_logp"]]) * (1 if highest else -1)
        kept = np.sort(np.argsort(-reward)[: len(reward) // 2])
        return {name: [rows[i] for i in kept] for name, rows in columns.items()}

    return change
