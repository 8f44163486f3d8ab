"""Where tensors come from: anything that a person may call a model, as a list of entries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samepolicy.errors import InputError, MissingDependencyError
from samepolicy.weights.names import Entry, entries

KINDS = "a model folder, a .safetensors, .gguf or .bin file, hf:PATH, vllm:PATH, or fingerprints in a .json file"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Tensors to read.

    Attributes:
        label: what it is called in sentences.
        entries: its tensors.
        tied: names that stand for one tensor: (the name that is read, its other name).
        notes: what a reader of the comparison should know, in sentences.
    """

    label: str
    entries: list[Entry]
    tied: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())


def open_source(model: Any) -> Source:
    """The tensors of anything that is a model.

    Args:
        model: a path or spec (see `KINDS`), a torch module, a `vllm.LLM`, an engine of this package, or a mapping of
            names to torch tensors.

    Raises:
        InputError: it is none of these, or its tensors cannot be compared; the message says why.
        CorruptFileError: a file is truncated or not what its name says.
        MissingDependencyError: torch, safetensors or gguf is not installed.
    """
    need("torch")
    if isinstance(model, Source):
        return model
    if isinstance(model, str | Path):
        return _from_path(str(model))
    if isinstance(model, Mapping):
        return _from_mapping(model)
    from samepolicy.weights import live

    return live.open_module(live.module_of(model))


def need(*packages: str) -> None:
    """Refuse to go on, with the pip line, if one of these packages is not installed."""
    import importlib

    for name in packages:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise MissingDependencyError(
                f"Reading weights needs {name}, which is not installed; run pip install 'samepolicy[hf]'."
            ) from error


def _from_path(spec: str) -> Source:
    """A file, a folder, or a model that vLLM loads."""
    from samepolicy.weights import files, live

    if spec.startswith("vllm:"):
        return live.load_vllm(spec.removeprefix("vllm:"))
    path = spec.removeprefix("hf:")
    here = Path(path).expanduser()
    if not path or not here.exists():
        raise InputError(f"There is no model at {path!r}; give {KINDS}.")
    if path.endswith(".gguf"):
        from samepolicy.weights import gguf_file

        return gguf_file.open_file(here)
    return files.open_folder(here) if here.is_dir() else files.open_file(here)


def _from_mapping(tensors: Mapping[str, Any]) -> Source:
    """Named tensors as they are."""
    import torch

    odd = next((name for name, value in tensors.items() if not isinstance(value, torch.Tensor)), None)
    if odd is not None or not tensors:
        what = "is empty" if odd is None else f"holds {type(tensors[odd]).__name__} under {odd!r}"
        raise InputError(f"A mapping of weights {what}; give names with torch tensors, such as model.state_dict().")
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    return Source(label="tensors", entries=entries(shapes, tensors.__getitem__))
