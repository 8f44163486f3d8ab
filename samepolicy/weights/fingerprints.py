"""The fingerprints of a whole model, and how they are taken, kept and read again."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from samepolicy.errors import CorruptFileError, InputError
from samepolicy.structure.fact import counted
from samepolicy.weights.source import Source, open_source
from samepolicy.weights.tensor import TensorPrint, hash_all, take

SCHEMA = 1
"""Version of the layout of stored fingerprints; a reader refuses a newer one."""

Tell: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how many parts are done, and how many there are."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Fingerprints(Mapping[str, TensorPrint]):
    """What is kept of a model: a fingerprint for each tensor, by canonical name.

    Attributes:
        label: what the model is called in sentences.
        tensors: by canonical name, the fingerprint; a tied tensor is there under each of its names.
        tied: names that stand for one tensor: (the name that was read, its other name).
        notes: what a reader of a comparison should know, in sentences.
    """

    label: str
    tensors: Mapping[str, TensorPrint]
    tied: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> TensorPrint:
        """The fingerprint of this tensor."""
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self.tensors)

    def __len__(self) -> int:
        """How many names there are."""
        return len(self.tensors)

    def __str__(self) -> str:
        """Counts and dtypes in a line."""
        dtypes = ", ".join(sorted({one.dtype for one in self.tensors.values() if not one.transient}))
        other = f", {len(self.tied)} of them under two names" if self.tied else ""
        return f"{self.label}: {counted(len(self) - len(self.tied), 'tensor')}{other} ({dtypes})"

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        other = {name for _, name in self.tied}
        return {
            "schema": SCHEMA,
            "format": "samepolicy weights",
            "label": self.label,
            "tied": [list(pair) for pair in self.tied],
            "notes": list(self.notes),
            "tensors": {name: one.as_dict() for name, one in self.tensors.items() if name not in other},
        }

    @classmethod
    def from_dict(cls, content: Any) -> "Fingerprints":
        """The fingerprints that `as_dict` gave.

        Raises:
            CorruptFileError: it is something else, or of a newer layout.
        """
        if not isinstance(content, dict) or content.get("format") != "samepolicy weights":
            raise CorruptFileError("This is no table of fingerprints; write one with Fingerprints.write.")
        if not isinstance(content.get("schema"), int) or content["schema"] > SCHEMA:
            raise CorruptFileError(
                f"These fingerprints have layout version {content.get('schema')!r}, but this samepolicy reads up to "
                f"{SCHEMA}; update it, or write them again."
            )
        try:
            tensors = {str(name): TensorPrint.from_dict(one) for name, one in content["tensors"].items()}
            tied = tuple((str(one), str(other)) for one, other in content["tied"])
            tensors |= {other: tensors[one] for one, other in tied}
            return cls(label=str(content["label"]), tensors=tensors, tied=tied, notes=tuple(map(str, content["notes"])))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptFileError(f"These fingerprints are not readable ({error!r}); write them again.") from error

    def write(self, path: str | Path) -> None:
        """Write a new .json file, about three kilobytes a tensor, which `fingerprint` and the command line read.

        Raises:
            InputError: another ending than .json, or the file exists.
        """
        target = Path(path)
        if target.suffix != ".json":
            raise InputError(f"Fingerprints are kept as JSON, but {target} does not end in .json; name it so.")
        if target.exists():
            raise InputError(f"{target} exists already; name a new file.")
        target.write_text(json.dumps(self.as_dict(), allow_nan=False), encoding="utf-8")


def fingerprint(model: Any, *, label: str = "", progress: Tell | None = None) -> Fingerprints:
    """Take the fingerprints of a model, one tensor at a time.

    Args:
        model: a model folder, a .safetensors, .gguf or .bin file, "vllm:PATH", a .json file of fingerprints, a torch
            module, a `vllm.LLM`, an engine of this package, a mapping of names to torch tensors, or `Fingerprints`.
        label: what to call it; by default its path or class.
        progress: told what is being done, how many tensors are done, and how many there are.

    Returns:
        The fingerprints; about two kilobytes a tensor, whatever its size.

    Raises:
        InputError: it is none of these, or its tensors cannot be compared; the message says why.
        CorruptFileError: a file is truncated or not what its name says.
        MissingDependencyError: torch, safetensors, gguf or vLLM is not installed.

    >>> import torch
    >>> found = fingerprint(torch.nn.Linear(4, 3), label="layer")
    >>> print(found)
    layer: 2 tensors (float32)
    >>> found["weight"].shape
    (3, 4)
    """
    return Reading.of(model, label=label, progress=progress, hashes=None).prints


@dataclass(frozen=True)
class Reading:
    """Fingerprints, and the tensors they were taken of where these can be read again.

    Attributes:
        prints: the fingerprints.
        source: the tensors; None for stored fingerprints.
    """

    prints: Fingerprints
    source: Source | None

    @classmethod
    def of(
        cls, model: Any, *, label: str = "", progress: Tell | None = None, hashes: Collection[str] | None = ()
    ) -> "Reading":
        """Read a model once; see `fingerprint` and, for `hashes`, `take`."""
        if isinstance(model, Fingerprints):
            return cls(replace(model, label=label) if label else model, None)
        if isinstance(model, str | Path) and str(model).endswith(".json"):
            return cls(replace(_read(Path(model)), label=label or str(model)), None)
        source = open_source(model)
        source = replace(source, label=label) if label else source
        tensors: dict[str, TensorPrint] = {}
        for name, tensor, transient in _tensors(source, progress):
            tensors[name] = take(tensor, transient=transient, hashes=hashes)
        tied = tuple(pair for pair in source.tied if pair[0] in tensors)
        tensors |= {other: tensors[one] for one, other in tied}
        if not tensors:
            raise InputError(f"{source.label} holds no tensors; give a saved or loaded model.")
        prints = Fingerprints(label=source.label, tensors=tensors, tied=tied, notes=source.notes)
        return cls(prints, source)

    def with_hashes(self, wanted: Mapping[str, Collection[str]], *, progress: Tell | None = None) -> Fingerprints:
        """The fingerprints with hashes by rows and columns added for some tensors, which are read again.

        Args:
            wanted: by name, what to hash; see `take`.
            progress: see `fingerprint`.
        """
        if self.source is None or not any(wanted.values()):
            return self.prints
        tensors = dict(self.prints.tensors)
        own = {one: other for other, one in self.prints.tied}
        names = {own.get(name, name): what for name, what in wanted.items() if what}
        for name, tensor, _ in _tensors(self.source, progress, names):
            tensors[name] = replace(tensors[name], hashes=hash_all(tensor, names[name]))
        tensors |= {other: tensors[one] for one, other in self.prints.tied}
        return replace(self.prints, tensors=tensors)


def _tensors(
    source: Source, progress: Tell | None, names: Collection[str] | None = None
) -> Iterator[tuple[str, Any, bool]]:
    """Name, tensor and whether it is transient, one after the other; those of some names only, if asked."""
    for done, entry in enumerate(source.entries):
        wanted = [name for name in entry.pieces if names is None or name in names]
        if progress is not None:
            progress(f"reading {source.label}", done, len(source.entries))
        stored = entry.load() if wanted else None
        for name in wanted:
            yield name, entry.pieces[name](stored), entry.transient


def _read(path: Path) -> Fingerprints:
    """Fingerprints from a file."""
    if not path.is_file():
        raise InputError(f"There is no file {str(path)!r}; give fingerprints that Fingerprints.write has written.")
    try:
        return Fingerprints.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, CorruptFileError) else f"It is not JSON ({error}); write it again."
        raise CorruptFileError(f"{path}: {why}") from error
