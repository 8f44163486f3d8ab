"""One thing that a run's columns or declarations show."""

from dataclasses import dataclass
from typing import Literal, TypeAlias


def counted(number: int, noun: str) -> str:
    """A number of things in words.

    >>> counted(1, "prompt"), counted(2, "prompt")
    ('1 prompt', '2 prompts')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


Status: TypeAlias = Literal["passed", "failed", "not checked"]
"""What a test came to; "not checked" always goes with what it would take."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """What one test found.

    Attributes:
        name: the test, such as "copy".
        rung: the rung of the ladder that it belongs to.
        status: passed, failed, or not checked.
        sentence: what was found, with numbers, or what the test would need.
        proof: a failure shows by itself that the run is broken; otherwise the gap decides.
        fix: what to do about a failure.
    """

    name: str
    rung: str
    status: Status
    sentence: str
    proof: bool = False
    fix: str = ""

    @property
    def breaks(self) -> bool:
        """Whether this alone makes the verdict `different`."""
        return self.proof and self.status == "failed"

    def __str__(self) -> str:
        """Status and sentence."""
        return f"{self.status}: {self.sentence}"


@dataclass(frozen=True)
class Test:
    """A test that is about to give its fact.

    Attributes:
        name: the test.
        rung: the rung of the ladder that it belongs to.
    """

    __test__ = False  # pytest must not collect it
    name: str
    rung: str

    def passed(self, sentence: str) -> Fact:
        """What was found is as it should be."""
        return Fact(name=self.name, rung=self.rung, status="passed", sentence=sentence)

    def failed(self, sentence: str, *, fix: str = "") -> Fact:
        """What was found is a lead; the gap decides."""
        return Fact(name=self.name, rung=self.rung, status="failed", sentence=sentence, fix=fix)

    def broken(self, sentence: str, *, fix: str) -> Fact:
        """What was found shows by itself that the run is broken."""
        return Fact(name=self.name, rung=self.rung, status="failed", sentence=sentence, proof=True, fix=fix)

    def unchecked(self, sentence: str) -> Fact:
        """The test was not possible; the sentence says what it would take."""
        return Fact(name=self.name, rung=self.rung, status="not checked", sentence=sentence)
