"""What a cause raises where an undo cannot be tried; the search notes it and goes on."""

from samepolicy.errors import EngineError


class Unavailable(EngineError):  # noqa: N818 - no fault of anyone
    """Something that an undo needs is not there; the message says what it would take. Caught by the search."""


class Clash(Unavailable):
    """Something that is known already speaks against trying this."""
