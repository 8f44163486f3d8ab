"""Files that `--skip-bad` leaves out: each is named on stderr when it is met, and all are counted in the result."""

from samepolicy.cli import output
from samepolicy.errors import CorruptFileError


class Skipped:
    """Collects the sentences about files that were left out."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def __call__(self, error: CorruptFileError) -> None:
        """Note one file, once however often it is met."""
        if str(error) in self.sentences:
            return
        self.sentences.append(str(error))
        output.note(f"Skipped ({len(self.sentences)}): {error}")
