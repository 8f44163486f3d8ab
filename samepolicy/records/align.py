"""Which tokens are the same where the trainer scored other ids than the engine sampled."""

from difflib import SequenceMatcher

import numpy as np

from samepolicy.arrays import Ragged


def align(rollout: np.ndarray, trainer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pair the tokens of two id sequences by their longest common blocks.

    Args:
        rollout: ids that the engine sampled, int [n].
        trainer: ids that the trainer scored, int [m].

    Returns:
        The positions in either sequence of the pairs, both rising, int64 [pairs].

    >>> [p.tolist() for p in align(np.array([5, 6, 7, 8]), np.array([5, 9, 7, 8, 2]))]
    [[0, 2, 3], [0, 2, 3]]
    """
    size = min(len(rollout), len(trainer))
    head = _equal_run(rollout[:size], trainer[:size])
    tail = _equal_run(rollout[head:][::-1][: size - head], trainer[head:][::-1][: size - head])
    pairs = [(head, head, 0)] if head == size else _blocks(rollout, trainer, head, tail)
    blocks = [(0, 0, head), *pairs, (len(rollout) - tail, len(trainer) - tail, tail)]
    left = np.concatenate([np.arange(a, a + n) for a, _, n in blocks]).astype(np.int64)
    right = np.concatenate([np.arange(b, b + n) for _, b, n in blocks]).astype(np.int64)
    return left, right


def align_all(rollout: Ragged, trainer: Ragged) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`align` for every sequence.

    Returns:
        Positions among the packed rollout tokens, among the packed trainer tokens, and pairs of each sequence.
    """
    pairs = [align(a, b) for a, b in zip(rollout, trainer, strict=True)]
    none = [np.zeros(0, dtype=np.int64)]
    left = np.concatenate(none + [p + at for (p, _), at in zip(pairs, rollout.offsets[:-1], strict=True)])
    right = np.concatenate(none + [p + at for (_, p), at in zip(pairs, trainer.offsets[:-1], strict=True)])
    return left, right, np.array([len(p) for p, _ in pairs], dtype=np.int64)


def _equal_run(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading values are equal."""
    differ = np.flatnonzero(a != b)
    return int(differ[0]) if len(differ) else len(a)


def _blocks(rollout: np.ndarray, trainer: np.ndarray, head: int, tail: int) -> list[tuple[int, int, int]]:
    """Matching blocks between the common head and the common tail."""
    a, b = rollout[head : len(rollout) - tail].tolist(), trainer[head : len(trainer) - tail].tolist()
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    return [(block.a + head, block.b + head, block.size) for block in matcher.get_matching_blocks()]
