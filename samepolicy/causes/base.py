"""What a cause is: a paragraph a person can act on, a way to take the fault away, and a way to make it.

A cause is one module of this package with one subclass of `Cause`; nothing else needs to be edited. Its name is the
class's name in snake case, its docstring has five parts under their headings, and the search finds it by itself.
"""

import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from numpy.random import Generator

from samepolicy.causes.settings import DECLARED, Settings
from samepolicy.errors import InputError, perhaps
from samepolicy.records.run import Run
from samepolicy.summary import json_number

if TYPE_CHECKING:
    from samepolicy.causes.evidence import Evidence

Proof: TypeAlias = Literal["structural", "undone", "surprisal", "size"]
"""How a cause is shown: by ids and constants alone; by undoing it; by what was sampled; by the size of rounding."""

SideWord: TypeAlias = Literal["rollout", "trainer", "unknown"]

HEADINGS = ("What happens", "How it shows", "How to confirm", "How to fix", "References")
"""The parts of a cause's docstring, each at the beginning of a line with two spaces or more behind it."""


class Rung(Enum):
    """The rungs of the ladder, in the order that people check in."""

    TOKENS = "tokens"
    TEMPLATE = "template"
    SHIFT = "shift"
    MASK = "mask"
    SAMPLING = "sampling"
    POSITIONS = "positions"
    WEIGHTS = "weights"
    ROUTING = "routing"
    NUMERICS = "numerics"

    @property
    def order(self) -> int:
        """The place on the ladder, from 0."""
        return list(type(self)).index(self)


@dataclass(frozen=True, kw_only=True)
class Check:
    """What arrays alone say about a cause.

    Attributes:
        status: "proved" needs no other proof; "excluded" spares the undo; "possible" leaves it open.
        sentence: what was seen, with its numbers.
        side: whose fault it is, where arrays tell.
        settings: what undoes it, where it is proved.
        parameters: what was read off, where it is proved.
    """

    status: Literal["proved", "possible", "excluded"] = "possible"
    sentence: str = ""
    side: SideWord = "unknown"
    settings: Settings = DECLARED
    parameters: Mapping[str, Any] = field(default_factory=dict)


POSSIBLE = Check()
"""Nothing is known from arrays."""


@dataclass(frozen=True, kw_only=True)
class Undone:
    """One way to take a cause away.

    Attributes:
        settings: under which the reference predicts what the side recorded.
        parameters: what was estimated, JSON-ready.
        side: whose fault it is, where the settings tell; otherwise the side that misses its own declaration.
        sentence: what was seen beside the numbers that every finding has.
    """

    settings: Settings = DECLARED
    parameters: Mapping[str, Any] = field(default_factory=dict)
    side: SideWord = "unknown"
    sentence: str = ""


class Cause:
    """A reason for a gap. Say the `rung`, write `undo` and `reproduce`, and `check` where arrays alone tell something.

    Attributes:
        rung: where on the ladder it belongs.
        proof: how it is shown; "undone" is searched for, "surprisal" and "size" prove themselves in `undo`.
        cost: 0 if its undo is array arithmetic, 1 if it runs the head again, 2 the body, 3 other weights.
        equivalent: names of causes that no data can tell from this one.
        separate: the experiment that tells this cause from others that explain as much.
        reference: options of the toy engine that its reproduction is diagnosed with.
        checkpoints: checkpoints that its reproduction is diagnosed with.
    """

    rung: ClassVar[Rung]
    proof: ClassVar[Proof] = "undone"
    cost: ClassVar[int] = 1
    equivalent: ClassVar[frozenset[str]] = frozenset()
    separate: ClassVar[str] = ""
    reference: ClassVar[Mapping[str, Any]] = {"dtype": "bfloat16"}
    checkpoints: ClassVar[tuple[str, ...]] = ()

    def check(self, evidence: "Evidence") -> Check:
        """What arrays alone say; no engine may be asked."""
        return POSSIBLE

    def undo(self, evidence: "Evidence") -> Iterator[Undone]:
        """The ways to take it away that are worth judging, parameters fitted; none where it cannot be this cause.

        `Unavailable` may be raised (by `evidence.rescore` and the like) where something that it takes is not there.
        """
        raise NotImplementedError

    def reproduce(self, rng: Generator) -> Run:
        """A run of the toy engine with this fault."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The class's name in snake case."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def doc(self) -> str:
        """The whole docstring."""
        return inspect.cleandoc(type(self).__doc__ or "")

    @property
    def title(self) -> str:
        """The first line of the docstring."""
        return self.doc.partition("\n")[0]

    @property
    def parts(self) -> dict[str, str]:
        """The parts of the docstring by heading, each as one line."""
        return parts_of(self.doc)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A named cause.

    Attributes:
        cause: the cause's name.
        rung: where on the ladder it belongs.
        parameters: what was estimated.
        explained: share of the gap that the named causes of this side close together; None where it does not apply.
        low: lower end of its 95 % interval.
        high: upper end.
        nats: how far this cause alone moves a token on average, nats; None where it moves none.
        side: whose fault it is.
        proof: structural, undone, surprisal or size.
        evidence: what it rests on, in a sentence.
        fix: what to do.
        alternatives: causes that explain as much.
        separate: the experiment that tells them apart.
        token: the token that it moves most, response and position; None where it moves none, or sides have other ids.
    """

    cause: str
    rung: str
    parameters: Mapping[str, Any]
    explained: float | None = None
    low: float | None = None
    high: float | None = None
    nats: float | None = None
    side: SideWord
    proof: Proof
    evidence: str
    fix: str
    alternatives: tuple[str, ...] = ()
    separate: str = ""
    token: tuple[int, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; a number that does not exist is null."""
        value: dict[str, Any] = {n: list(v) if isinstance(v, tuple) else v for n, v in asdict(self).items()}
        for name in ("explained", "low", "high", "nats"):
            value[name] = None if value[name] is None else json_number(value[name])
        explained, low, high = (value.pop(name) for name in ("explained", "low", "high"))
        return value | {"explained": explained, "interval": None if low is None else [low, high]}

    @property
    def told(self) -> str:
        """Name and parameters, such as "temperature (temperature 0.7)"."""
        inside = ", ".join(f"{key.replace('_', ' ')} {_plain(value)}" for key, value in self.parameters.items())
        return f"{self.cause} ({inside})" if inside else self.cause

    def __str__(self) -> str:
        """The cause, whose it is, and how much it explains."""
        share = "" if self.explained is None else f", explains {self.explained:.0%} of the gap"
        side = "side unknown" if self.side == "unknown" else f"on the {self.side}'s side"
        return f"{self.told}, {side}{share} ({self.proof})"


@cache
def all_causes() -> dict[str, Cause]:
    """Every cause of this package by name, in the order of the ladder, then by name.

    >>> [name for name, cause in all_causes().items() if cause.rung is Rung.SHIFT]
    ['row_order', 'shift']
    """
    import samepolicy.causes as package

    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        import_module(f"{package.__name__}.{module}")
    made = [cls() for cls in Cause.__subclasses__() if cls.__module__.startswith(package.__name__)]
    ordered = sorted(made, key=lambda cause: (cause.rung.order, cause.name))
    return {cause.name: cause for cause in ordered}


def cause(name: str) -> Cause:
    """The cause of that name.

    Raises:
        InputError: there is none; the message has those that are spelled alike, or lists all.

    >>> cause("temperature").rung.value
    'sampling'
    """
    known = all_causes()
    if name not in known:
        alike = perhaps(name, known, f"the causes are {', '.join(known)}")
        raise InputError(f"There is no cause called {name!r}; {alike}.")
    return known[name]


def alike(one: str, other: str) -> bool:
    """Whether no data can tell two causes apart."""
    known = all_causes()
    return other in known[one].equivalent or one in known[other].equivalent


def parts_of(doc: str) -> dict[str, str]:
    r"""The parts of a cause's docstring by heading.

    >>> parts_of("A title.\n\nWhat happens    One thing\n                goes wrong.\nReferences      none")
    {'What happens': 'One thing goes wrong.', 'References': 'none'}
    """
    found: dict[str, str] = {}
    heading = ""
    for line in doc.splitlines():
        begun = next((h for h in HEADINGS if line.startswith(f"{h}  ")), None)
        heading = begun or heading
        text = line[len(begun) :].strip() if begun else line.strip()
        if heading and text:
            found[heading] = f"{found.get(heading, '')} {text}".strip()
    return found


def _plain(value: Any) -> str:
    """A parameter's value in a few characters."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
