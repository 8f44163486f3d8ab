"""Where a run is: a local path, or a URL of any file system that pyarrow or fsspec knows."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from samepolicy.errors import CorruptFileError, InputError, MissingDependencyError

_BYTES = re.compile("[\ud800-\udfff]")
"""What stands in a path for bytes that are no UTF-8."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)(.*)")


@dataclass(frozen=True)
class Place:
    """A folder that is read, here or elsewhere.

    Attributes:
        text: the path or URL, as messages show it.

    >>> Place.of("s3://bucket/run").text, Place.of(Path("s3://bucket/run")).text, Place.of("run").local
    ('s3://bucket/run', 's3://bucket/run', PosixPath('run'))
    """

    text: str

    @classmethod
    def of(cls, path: "str | os.PathLike[str] | Place") -> "Place":
        """The place of a path or URL; a `Path` that swallowed one of a URL's slashes is understood."""
        if isinstance(path, Place):
            return path
        text = text_of(path)
        found = _URL.fullmatch(text)
        if found is None:
            return cls(text)
        scheme, slashes, rest = found.groups()
        root = "/" if scheme in ("file", "local") or len(slashes) > 2 else ""
        return cls(f"{scheme}://{root}{rest.rstrip('/')}")

    @property
    def local(self) -> Path | None:
        """The path, where it is one on this machine; None for a URL."""
        return None if _URL.fullmatch(self.text) else Path(self.text)

    def __truediv__(self, name: str) -> "Place":
        """A file below this place."""
        return Place(str(self.local / name) if self.local is not None else f"{self.text}/{name}")

    def __str__(self) -> str:
        """The path or URL."""
        return self.text

    def names(self) -> list[str]:
        """Names of what the folder holds; nothing where there is no folder.

        Raises:
            OSError: it may not be read.
            InputError: a URL whose file system does not answer.
        """
        if self.local is not None:
            return sorted(entry.name for entry in self.local.iterdir()) if self.local.is_dir() else []
        from pyarrow.fs import FileSelector

        with self._answering():
            system, path = self._system
            found = system.get_file_info(FileSelector(path, allow_not_found=True))
        return sorted(info.base_name for info in found)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name in the folder."""
        if self.local is not None:
            return (self.local / name).is_file()
        with self._answering():
            system, path = self._system
            return bool(system.get_file_info(f"{path}/{name}").is_file)

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """This file, open for reading at any place in it.

        Raises:
            CorruptFileError: it is a folder, a pipe or a device.
        """
        if self.local is not None:
            with _plain(self.local).open("rb") as file:
                yield file
            return
        with self._answering():
            system, path = self._system
            remote = system.open_input_file(path)
        with remote:
            yield remote

    @contextmanager
    def source(self) -> Iterator[Any]:
        """This file as pyarrow reads it fastest: by its path where it has one that UTF-8 can say."""
        if self.local is not None and not _BYTES.search(self.text):
            yield str(_plain(self.local))
            return
        with self.opened() as remote:
            yield remote

    def read_bytes(self) -> bytes:
        """All of this file."""
        with self.opened() as file:
            return bytes(file.read())

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Whatever a remote file system refuses, in a sentence."""
        try:
            yield
        except OSError as error:
            why = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
            raise InputError(
                f"{self} cannot be read ({why}); check the address, the network and your rights there."
            ) from error

    @cached_property
    def _system(self) -> tuple[Any, str]:
        """The file system of a URL, and the path in it."""
        import pyarrow as pa
        from pyarrow.fs import FileSystem

        try:
            found: tuple[Any, str] = FileSystem.from_uri(self.text)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            found = _by_fsspec(self.text)
        return found


def text_of(path: "str | os.PathLike[str]") -> str:
    """A path or URL as text.

    Raises:
        InputError: it is neither.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(
            f"A file or folder is told as text or a Path, and this is {type(path).__name__}; give its path."
        )
    return os.fspath(path)


def _plain(path: Path) -> Path:
    """The path, if it is one of a file, or of nothing.

    Raises:
        CorruptFileError: a folder, or a pipe or a device that could be waited for without an end.
    """
    if path.exists() and not path.is_file():
        raise CorruptFileError(
            f"{path} is a folder, a pipe or a device, not a file; move it away, or leave it out (--skip-bad)."
        )
    return path


def _by_fsspec(url: str) -> tuple[Any, str]:
    """The file system of a URL that only fsspec knows, as pyarrow takes it.

    Raises:
        MissingDependencyError: fsspec, or what it needs for this kind of URL, is not installed.
        InputError: no file system has such URLs.
    """
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    try:
        system, path = import_module("fsspec.core").url_to_fs(url)
    except ImportError as error:
        raise MissingDependencyError(
            f"{url} needs a package that is not installed ({error}); pip install fsspec and what it names."
        ) from error
    except ValueError as error:
        raise InputError(
            f"{url} is of no known file system ({error}); give a path, or a URL such as s3://…."
        ) from error
    return PyFileSystem(FSSpecHandler(system)), path
