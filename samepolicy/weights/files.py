"""Weights in files: safetensors in one file or in shards, and .bin files without any code in them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from samepolicy.arrays import Array
from samepolicy.errors import CorruptFileError, InputError
from samepolicy.weights.names import Entry, canonical, entries
from samepolicy.weights.source import KINDS, Source, need

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight")
HEAD = "lm_head.weight"


def open_folder(folder: Path) -> Source:
    """The weights of a saved model.

    Raises:
        InputError: no weights in it, or quantised ones.
        CorruptFileError: a file is truncated, or one that the index names is missing.
    """
    config = _config(folder)
    if config.get("quantization_config"):
        how = config["quantization_config"].get("quant_method", "unknown") or "unknown"
        raise InputError(
            f"The weights in {folder} are quantised ({how}), so its numbers mean nothing without their scales; compare "
            "the model that it was made from, or a dequantised copy."
        )
    found: list[Entry] = []
    for file in _files(folder):
        found += _entries(file)
    return _source(str(folder), found, config)


def open_file(file: Path) -> Source:
    """The weights of one file; a config.json beside it says whether the head is tied.

    Raises:
        InputError: a file of another kind.
        CorruptFileError: truncated, or not what its name says.
    """
    if file.suffix != ".safetensors" and file.suffix not in PICKLES:
        raise InputError(f"{file} is no file of weights that can be read; give {KINDS}.")
    return _source(str(file), _entries(file), _config(file.parent))


def tie(names: list[str], *, tied: bool | None) -> tuple[tuple[str, str], ...]:
    """The names that stand for one tensor where a model has no head of its own.

    Args:
        names: canonical names.
        tied: what the config says; None where it says nothing.

    >>> tie(["model.embed_tokens.weight", "model.norm.weight"], tied=None)
    (('model.embed_tokens.weight', 'lm_head.weight'),)
    """
    if HEAD in names or tied is False:
        return ()
    return tuple((name, HEAD) for name in EMBEDDINGS if name in names)


def _source(label: str, found: list[Entry], config: dict[str, Any]) -> Source:
    """Entries as a source, the head tied where there is none."""
    refuse_quantised(label, [entry.name for entry in found])
    text = config.get("text_config")
    said = config.get("tie_word_embeddings", text.get("tie_word_embeddings") if isinstance(text, dict) else None)
    names = [canonical(entry.name) for entry in found]
    return Source(label=label, entries=found, tied=tie(names, tied=said))


def refuse_quantised(label: str, names: list[str]) -> None:
    """Refuse packed numbers that need scales to mean something.

    Raises:
        InputError: a name tells of a quantised tensor; it is in the message.
    """
    ends = ("weight_scale", "weight_scale_inv", "qweight", "qzeros", "weight_packed", "absmax", "weight_zero_point")
    odd = next((name for name in names if name.endswith(ends)), None)
    if odd:
        raise InputError(
            f"{label} holds quantised weights ({odd}), whose numbers mean nothing without their scales; compare the "
            "model that it was made from, or a dequantised copy."
        )


def _config(folder: Path) -> dict[str, Any]:
    """The folder's config.json; empty where there is none."""
    file = folder / "config.json"
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{file} is not JSON ({error}); save the model again.") from error
    return found if isinstance(found, dict) else {}


def _files(folder: Path) -> list[Path]:
    """The weight files of a folder: those of its index, else the usual ones, else all."""
    for kind in (".safetensors", *PICKLES):
        for index in sorted(folder.glob(f"*{kind}.index.json")):
            return _indexed(index)
        found = sorted(folder.glob(f"*{kind}"))
        usual = [f for f in found if f.name.startswith(("model", "pytorch_model", "adapter_model"))]
        if found and kind != ".pt":
            return usual or found
    raise InputError(f"There are no weights in {folder}; give {KINDS}.")


def _indexed(index: Path) -> list[Path]:
    """The shards that an index names."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise CorruptFileError(f"{index} is no index of weights ({error!r}); save the model again.") from error
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise CorruptFileError(
            f"{index} names {missing[0]}, which is missing ({len(missing)} of {len(names)} files); copy the "
            "folder again."
        )
    return [index.parent / name for name in names]


def _entries(file: Path) -> list[Entry]:
    """The tensors of one file."""
    return entries(*(_safetensors(file) if file.suffix == ".safetensors" else _pickled(file)))


def _safetensors(file: Path) -> tuple[dict[str, tuple[int, ...]], Callable[[str], Array]]:
    """Shapes and a reader; nothing is read but the header."""
    need("safetensors")
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(str(file), framework="pt")
        shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CorruptFileError(
            f"{file} is truncated or no safetensors file ({str(error).splitlines()[0]}); copy or save it again."
        ) from error
    return shapes, opened.get_tensor


def _pickled(file: Path) -> tuple[dict[str, tuple[int, ...]], Callable[[str], Array]]:
    """Shapes and a reader of a .bin file, which may hold tensors and nothing else; its data stay on disk."""
    import pickle
    import warnings
    import zipfile

    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's thoughts about a file that it then refuses
            found = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except pickle.UnpicklingError as error:
        if "Unsupported" in str(error) or "GLOBAL" in str(error):
            raise InputError(
                f"{file} is a pickle that holds more than tensors, and loading it could run any code; save the model "
                "as safetensors."
            ) from error
        raise CorruptFileError(f"{file} is truncated or no file of weights; copy or save it again.") from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise CorruptFileError(f"{file} is truncated or no file of weights; copy or save it again.") from error
    found = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise InputError(f"{file} holds no table of tensors; save the model's state_dict.")
    return {name: tuple(value.shape) for name, value in found.items()}, found.__getitem__
