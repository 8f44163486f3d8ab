"""Compare the weights of two models, tensor by tensor."""

from collections.abc import Iterator, Sequence
from typing import Any

from samepolicy.errors import InputError
from samepolicy.structure.fact import counted
from samepolicy.weights.files import HEAD
from samepolicy.weights.fingerprints import Fingerprints, Reading, Tell
from samepolicy.weights.relate import Pair, equal
from samepolicy.weights.result import Comparison, Relation
from samepolicy.weights.tensor import CASTS, TensorPrint


def compare(a: Any, b: Any, *, checkpoints: Sequence[Any] = (), progress: Tell | None = None) -> Comparison:
    """Say of every tensor whether both models hold the same one, and if not, what became of it.

    Each model is read one tensor at a time, and only fingerprints of a few kilobytes are kept; tensors that are not
    equal are read once more to hash what casts make of them.

    Args:
        a: a model, usually the trainer's; see `fingerprint` for what can be one.
        b: the other, usually the engine's.
        checkpoints: earlier states, oldest first, that a stale tensor may be equal to.
        progress: told what is being done, how many tensors are done, and how many there are.

    Returns:
        The relation of every tensor, counts, and a verdict.

    Raises:
        InputError: a model cannot be read or compared, or the two have no tensor in common.
        CorruptFileError: a file is truncated or not what its name says.

    >>> import torch
    >>> one = {"up.weight": torch.arange(6.0).reshape(2, 3), "norm.weight": torch.ones(3)}
    >>> print(compare(one, {**one, "up.weight": one["up.weight"] * 0.5}))
    The weights differ: 1 of 2 tensors is not the same (1 scaled).
      up.weight: scaled (B = 0.5 × A)
    """
    both = [Reading.of(model, progress=progress) for model in (a, b)]
    _refuse_strangers(both[0].prints, both[1].prints)
    before = [Reading.of(model, progress=progress) for model in checkpoints]
    first, second, *earlier = _with_hashes(both, before, progress)
    tied = tuple(pair for pair in first.tied if pair in second.tied)
    pair, twice = Pair(first, second, tuple(earlier)), {other for _, other in tied}
    relations = tuple(_relations(pair, [name for name in _names(first, second) if name not in twice]))
    return Comparison(
        a=first.label, b=second.label, relations=relations, tied=tied, notes=tuple(_notes(first, second, tied))
    )


def _with_hashes(both: Sequence[Reading], before: Sequence[Reading], progress: Tell | None) -> list[Fingerprints]:
    """The fingerprints of all models; tensors that are not equal have the hashes that may explain it."""
    a, b = both[0].prints, both[1].prints
    unequal = [name for name in a if name in b and not equal(a[name], b[name])]
    found = []
    for reading in (*both, *before):
        mine = reading.prints
        wanted = {name: _kinds(mine[name], a[name], b[name]) for name in unequal if name in mine}
        found.append(reading.with_hashes(wanted, progress=progress))
    return found


def _kinds(mine: TensorPrint, *others: TensorPrint) -> list[str]:
    """The values themselves, and their casts to the dtypes of the other sides, or to any where all have its own."""
    theirs = {other.dtype for other in others} - {mine.dtype}
    return ["", *(dtype for dtype in CASTS.get(mine.dtype, ()) if not theirs or dtype in theirs)]


def _names(a: Fingerprints, b: Fingerprints) -> list[str]:
    """All names, in the order of A, then what only B has."""
    return list(dict.fromkeys([*a, *b]))


def _relations(pair: Pair, names: list[str]) -> Iterator[Relation]:
    """The relation of each name; what one framework alone computes is compared where both sides have it."""
    for name in names:
        if name in pair.a and name in pair.b:
            yield pair.relate(name)
        elif not (pair.a.get(name) or pair.b[name]).transient:
            yield Relation(name=name, status="missing", side="A" if name in pair.b else "B")


def _refuse_strangers(a: Fingerprints, b: Fingerprints) -> None:
    """Refuse models that have nothing in common: that is no difference of weights."""
    common = [name for name in a if name in b and name != HEAD and not a[name].transient]
    if not common:
        raise InputError(
            f"{a.label} and {b.label} have no tensor name in common ({next(iter(a))}, … against {next(iter(b))}, …), "
            "so they are of different architectures; compare two copies of one model."
        )
    if not any(a[name].shape == b[name].shape for name in common):
        name = common[0]
        raise InputError(
            f"No tensor has the same shape in {a.label} and {b.label} ({name}: {list(a[name].shape)} against "
            f"{list(b[name].shape)}), so they are models of different sizes; compare two copies of one model."
        )


def _notes(a: Fingerprints, b: Fingerprints, tied: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """What a reader should know beside the tensors."""
    yield from dict.fromkeys([*a.notes, *b.notes])
    for one, other in tied:
        yield f"{one} and {other} are one tensor on both sides"
    for side, model, against in (("A", a, b), ("B", b, a)):
        for one, other in model.tied:
            if (one, other) not in tied and other in against:
                yield f"{side} ties {other} to {one}, the other side does not"
        alone = [name for name, one in model.items() if one.transient and name not in against]
        if alone:
            yield f"{counted(len(alone), 'buffer')} of {side} that the other side has not are left out ({alone[0]}, …)"
