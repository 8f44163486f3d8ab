"""What a server is asked, and the journal of its answers, so that nothing is asked twice."""

import json
import os
import threading
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from samepolicy.errors import InputError

Json: TypeAlias = dict[str, Any]

FIRST = '{"asked": '
"""What a line of a journal begins with."""


@dataclass(frozen=True)
class Call:
    """One POST: where, and what."""

    path: str
    body: Json


class Journal:
    """Answers that have come, one JSON object a line, so that an interrupted run goes on where it stopped.

    `server` is who answers, and `taken` how often an answer was there already.
    """

    def __init__(self, path: str | None) -> None:
        """Read what is there; a last line that was cut off is left out.

        Raises:
            InputError: it cannot be written, or holds something else, which nothing may be added to.
        """
        self.path = path
        self.server = ""
        self.taken = 0
        self._lock = threading.Lock()
        self._known: dict[str, Json] = {}
        if path is None:
            return
        file = Path(path)
        if (file.exists() and not file.is_file()) or not os.access(
            file if file.exists() else file.absolute().parent, os.W_OK
        ):
            raise InputError(f"The journal {path} cannot be written; name a file in a folder that is there.")
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        if text[: len(FIRST)] != FIRST[: len(text)]:
            raise InputError(
                f"{path} is no journal of a server's answers, and nothing is added to it; name a new file."
            )
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                if isinstance(entry["answer"], dict):
                    self._known[entry["asked"]] = entry["answer"]
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
        if text and not text.endswith("\n"):
            with file.open("a", encoding="utf-8") as end:
                end.write("\n")

    @property
    def kept(self) -> int:
        """How many answers are kept."""
        return len(self._known)

    def get(self, url: str, call: Call) -> Json | None:
        """The answer to this very call, or None."""
        found = self._known.get(self._name(url, call)) if self.path else None
        self.taken += found is not None
        return found

    def put(self, url: str, call: Call, answer: Json) -> None:
        """Keep an answer."""
        if self.path is None:
            return
        name = self._name(url, call)
        line = FIRST + json.dumps(name) + ', "answer": ' + json.dumps(answer) + "}\n"
        with self._lock:
            self._known[name] = answer
            with Path(self.path).open("a", encoding="utf-8") as file:
                file.write(line)

    def _name(self, url: str, call: Call) -> str:
        """What a call is known by: a hash of all that it asks, and whom."""
        return sha256(json.dumps([url, self.server, call.path, call.body], sort_keys=True).encode()).hexdigest()
