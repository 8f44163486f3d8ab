"""What one side computed at every tap, in a scratch file, so that memory holds one tensor at a time."""

import json
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from samepolicy.arrays import Array, Ragged
from samepolicy.errors import CorruptFileError, InputError
from samepolicy.layers import taps

DATA, INDEX = "taps.bin", "taps.json"


@dataclass(frozen=True)
class Slot:
    """Where a tap lies in the file: first byte, width, dtype."""

    start: int
    width: int
    dtype: str


@dataclass(eq=False)
class Capture:
    """Tensors by tap, each [tokens, width]; the tokens of all sequences one after the other, without padding.

    Attributes:
        ids: the token ids, one row per sequence.
        label: whose it is.
        layers: layers of the model.
        folder: where the file lies.
        slots: the taps that are there.
        prefilled: tokens of each sequence that were computed as a prompt; the others one at a time.
    """

    ids: Ragged
    label: str
    layers: int
    folder: Path
    slots: dict[str, Slot] = field(default_factory=dict)
    prefilled: tuple[int, ...] = ()
    _file: BinaryIO | None = None
    _end: int = 0

    @classmethod
    def new(cls, ids: Ragged, *, label: str, layers: int, folder: str | Path | None = None) -> Self:
        """An empty capture; without a folder it is deleted with the object.

        Args:
            ids: the token ids, one row per sequence.
            label: whose it is.
            layers: layers of the model.
            folder: an empty or new folder to keep it in.

        Raises:
            InputError: the folder holds something.
        """
        own = folder is None
        where = Path(tempfile.mkdtemp(prefix="samepolicy-layers-") if folder is None else folder)
        where.mkdir(parents=True, exist_ok=True)
        if any(where.iterdir()):
            raise InputError(f"{where} is not empty, so nothing is written there; give a new folder.")
        made = cls(ids, label, layers, where, prefilled=tuple(map(int, ids.lengths)))
        made._hold((where / DATA).open("w+b"), delete=own)
        return made

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """A capture that was saved.

        Raises:
            CorruptFileError: it is incomplete or of another kind.
        """
        where = Path(folder)
        try:
            told = json.loads((where / INDEX).read_text("utf-8"))
            ids = Ragged.from_lists([np.array(row, dtype=np.int64) for row in told["ids"]])
            slots = {tap: Slot(*slot) for tap, slot in told["slots"].items()}
            file = (where / DATA).open("rb")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptFileError(f"{where} holds no capture that can be read ({error}); record it again.") from error
        made = cls(ids, told["label"], told["layers"], where, slots, tuple(told["prefilled"]))
        made._hold(file, delete=False)
        return made

    def save(self) -> None:
        """Write the index, so that `open` finds the capture again."""
        told = {
            "label": self.label,
            "layers": self.layers,
            "ids": [row.tolist() for row in self.ids],
            "prefilled": list(self.prefilled),
            "slots": {tap: [slot.start, slot.width, slot.dtype] for tap, slot in self.slots.items()},
        }
        self._opened.flush()
        (self.folder / INDEX).write_text(json.dumps(told), "utf-8")

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return int(self.ids.offsets[-1])

    @property
    def taps(self) -> tuple[str, ...]:
        """The taps that are there, in the order of computation."""
        return tuple(tap for tap in taps.ordered(self.layers) if tap in self.slots)

    def write(self, tap: str, place: int, values: Array) -> None:
        """Keep a copy of values of consecutive tokens.

        Args:
            tap: its name.
            place: the first token's place among all tokens.
            values: torch tensor [count, width].
        """
        import torch

        values = values.detach().to("cpu").contiguous()
        slot = self.slots.get(tap)
        if slot is None:
            slot = Slot(self._end, values.shape[1], str(values.dtype).removeprefix("torch."))
            self.slots[tap] = slot
            self._end += self.tokens * values.shape[1] * values.element_size()
        size = slot.width * values.element_size()
        self._opened.seek(slot.start + place * size)
        self._opened.write(memoryview(values.reshape(-1).view(torch.uint8).numpy()))

    def read(self, tap: str, start: int = 0, stop: int | None = None) -> Array:
        """Values of the tokens from `start` to `stop`, torch [count, width], as they were computed."""
        import torch

        slot, stop = self.slots[tap], self.tokens if stop is None else stop
        dtype = getattr(torch, slot.dtype)
        size = slot.width * dtype.itemsize
        self._opened.seek(slot.start + start * size)
        content = bytearray(self._opened.read((stop - start) * size))
        if len(content) != (stop - start) * size:
            raise CorruptFileError(f"{self.folder / DATA} is too short for the tap {tap}; record it again.")
        return torch.frombuffer(content, dtype=dtype).reshape(stop - start, slot.width)

    def _hold(self, file: BinaryIO, *, delete: bool) -> None:
        """Keep a file open as long as this lives; with `delete`, its folder goes with it."""
        self._file = file
        weakref.finalize(self, _release, file, self.folder if delete else None)

    @property
    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise CorruptFileError(f"{self.folder / DATA} is closed; record it again.")
        return self._file


def _release(file: BinaryIO, folder: Path | None) -> None:
    """Close a file, and delete the folder it was for."""
    file.close()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def as_rows(ids: Sequence[Any] | Ragged) -> Ragged:
    """Token ids as rows, int64.

    Raises:
        InputError: no rows, an empty one, or something else than ids.
    """
    rows = list(ids)
    if not rows or any(np.ndim(row) != 1 or not len(row) for row in rows):
        raise InputError("ids must be a list of rows of token ids, each with one id at least.")
    found = [np.asarray(row) for row in rows]
    if any(row.dtype.kind not in "iu" for row in found):
        raise InputError("Token ids are whole numbers; give the ids of the sequences, not their text.")
    return Ragged.from_lists([row.astype(np.int64) for row in found])
