"""Some tensors of one side are of an older version, the others are not."""

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from numpy.random import Generator

from samepolicy.causes.base import Cause, Check, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.inside import old_weights, proved, same_weights
from samepolicy.causes.making import toy_run
from samepolicy.causes.model import changeable, changed_toy
from samepolicy.causes.settings import Settings
from samepolicy.engines.change import Change
from samepolicy.records.run import Run
from samepolicy.structure.fact import counted

LAYER = re.compile(r"(?:^|\.)(\d+)\.")
"""The number of a layer in a tensor's name."""

SHOWN = 3
"""Tensors that are named."""

HEAD = ("*head*", "*embed_out*")
EMBED = ("*embed*", "*wte*")
"""Patterns of the output head and of the input embedding."""


class PartialSync(Cause):
    """Only a part of the weights reached the engine: some tensors are of an older version.

    What happens    The synchronisation leaves tensors out: a range of layers (a pipeline stage, a shard), a cloned copy
                    of a tied head, tensors whose names did not match, a buffer.
    How it shows    As stale weights, but no whole checkpoint explains it; hidden states agree up to the first old
                    tensor.
    How to confirm  Compare a checksum of every tensor on both sides right after an update (`samepolicy weights`).
    How to fix      Count what was loaded and compare it with what was sent. vLLM: load_weights returns the names that
                    it loaded; for tied embeddings update both or keep them tied; then reset_prefix_cache. SGLang:
                    update_weights_from_tensor for every rank, then flush_cache. verl: send all parameters of
                    all pipeline stages, buffers included, and check names after the weight loader's mapping. TRL: sync
                    through model.named_parameters() of the unwrapped model with modules_to_save merged. ms-swift:
                    --move_model_batches must cover all layers. Megatron: export every pipeline and expert rank.
    References      vLLM pull request 51665 (an update of tied embeddings that does not reach the head); prime-rl pull
                    request 2823 (a cloned tied head stays old)
    """

    rung = Rung.WEIGHTS
    cost = 3
    separate = "compare a checksum of every tensor on both sides right after an update"
    checkpoints: ClassVar[tuple[str, ...]] = ("stale=0.09", "stale=0.06", "stale=0.03")

    def check(self, evidence: Evidence) -> Check:
        """Proved where some tensors are those of a checkpoint and their like are not; excluded where all are equal."""
        old = old_weights(evidence)
        if old is None or not old.partial:
            return same_weights(evidence)
        told = ", ".join(old.names[:SHOWN]) + (", …" if len(old.names) > SHOWN else "")
        sentence = f"{counted(len(old.names), 'tensor')} of {old.checkpoint}, bit for bit, beside newer ones: {told}"
        return proved(evidence, old, sentence, old=told)

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """Head, embedding, first layers or last layers of each checkpoint; the boundary by halving steps."""
        names = changeable(evidence, "an engine that can take single tensors over (an hf engine)").tensors
        checkpoints = evidence.checkpoints
        layers = _layers(names)
        parts = _parts(names, layers)
        if not parts:
            return
        tried = [Settings(change=Change(weights=c, tensors=p)) for c in checkpoints for p in parts]
        best = evidence.best(tried)
        if layers > 1:
            best = _refined(evidence, best, layers, names)
        assert best.change is not None
        where, tensors = str(best.change.weights), best.change.tensors
        told = _told(tensors, names)
        yield Undone(
            settings=best,
            parameters={"checkpoint": where, "old": told},
            sentence=f"with {told} of {where} and all else as it is the reference gives what was recorded",
        )

    def reproduce(self, rng: Generator) -> Run:
        """The rollout holds the second layer of the second of three kept checkpoints."""
        return toy_run(rng, rollout=changed_toy(Change(weights="stale=0.06", tensors=("1.*",))))


def _layers(names: Sequence[str]) -> int:
    """How many layers the names tell of."""
    return max((int(found.group(1)) + 1 for name in names if (found := LAYER.search(name))), default=0)


def _range(names: Sequence[str], first: int, last: int) -> tuple[str, ...]:
    """Patterns of the layers from `first` to before `last`."""
    prefix = next((name[: found.start(1)] for name in names if (found := LAYER.search(name))), "")
    return tuple(f"{prefix}{layer}.*" for layer in range(first, last))


def _parts(names: Sequence[str], layers: int) -> list[tuple[str, ...]]:
    """The parts that are tried first; all of the layers at once is not a part."""
    from fnmatch import fnmatchcase

    single = [p for p in (*HEAD, *EMBED) if any(fnmatchcase(n, p) for n in names)]
    half = layers // 2
    ranges = [_range(names, 0, half), _range(names, half, layers)] if layers > 1 else []
    return [*((p,) for p in single), *ranges, *([_range(names, 0, layers)] if layers else [])]


def _refined(evidence: Evidence, best: Settings, layers: int, names: Sequence[str]) -> Settings:
    """The best range of layers near a range: each end moved by steps that halve."""
    assert best.change is not None
    where, bounds = best.change.weights, _bounds(best.change.tensors)
    if bounds is None:
        return best
    step, least = max(layers // 4, 1), evidence.error(best)
    while step:
        first, last = bounds
        near = [(first - step, last), (first + step, last), (first, last - step), (first, last + step)]
        tried = [
            (evidence.error(one), pair, one)
            for pair in near
            if 0 <= pair[0] < pair[1] <= layers
            for one in [Settings(change=Change(weights=where, tensors=_range(names, *pair)))]
        ]
        error, pair, one = min(tried, key=lambda t: t[0], default=(least, bounds, best))
        if error < least:
            least, bounds, best = error, pair, one
        else:
            step //= 2
    return best


def _bounds(tensors: Sequence[str]) -> tuple[int, int] | None:
    """First layer and the one after the last of some patterns; None where they are of no layers."""
    found = [int(match.group(1)) for pattern in tensors if (match := LAYER.search(pattern))]
    return (found[0], found[-1] + 1) if found else None


def _told(tensors: Sequence[str], names: Sequence[str]) -> str:
    """Which tensors, in words."""
    bounds = _bounds(tensors)
    if bounds is None:
        return "the output head" if tensors[0] in HEAD else "the input embedding"
    first, last = bounds
    if last - first == _layers(names):
        return "all layers"
    return f"layer {first}" if last - first == 1 else f"layers {first} to {last - 1}"
