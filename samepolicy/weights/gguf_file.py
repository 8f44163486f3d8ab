"""Weights in a GGUF file: dequantised by the package `gguf` tensor by tensor, under a checkpoint's names."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from samepolicy.arrays import Array
from samepolicy.errors import CorruptFileError, InputError
from samepolicy.weights.files import tie
from samepolicy.weights.names import Cut, Entry, derived, experts
from samepolicy.weights.source import Source, need

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe")
"""Those whose names and layouts are known here."""

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def open_file(file: Path) -> Source:
    """The weights of a GGUF file.

    Raises:
        CorruptFileError: truncated, or no GGUF file.
        InputError: an architecture whose names are not known here.
        MissingDependencyError: the package gguf is not installed.
    """
    reader = _reader(file)
    kind = _field(reader, "general.architecture")
    if kind not in ARCHITECTURES:
        raise InputError(
            f"{file} is of the architecture {kind!r}, whose names in GGUF are not known here (known are "
            f"{', '.join(ARCHITECTURES)}); compare the safetensors that it was made from."
        )
    heads = {"attn_q": _field(reader, f"{kind}.attention.head_count")}
    heads["attn_k"] = _field(reader, f"{kind}.attention.head_count_kv") or heads["attn_q"]
    found = [_entry(tensor, heads if kind == "llama" else {}) for tensor in reader.tensors]
    formats = sorted({t.tensor_type.name for t in reader.tensors} - {"F32", "F16", "BF16", "F64"})
    note = f"{file} is quantised ({', '.join(formats)}): its dequantised values are compared"
    tied = tie([name for entry in found for name in entry.pieces], tied=None)
    return Source(label=str(file), entries=found, tied=tied, notes=(note,) if formats else ())


def _reader(file: Path) -> Any:
    """An open GGUF file, its data left on disk."""
    need("gguf")
    import gguf

    try:
        return gguf.GGUFReader(str(file))
    except Exception as error:
        raise CorruptFileError(
            f"{file} is truncated or no GGUF file ({str(error).partition(chr(10))[0]}); download it again."
        ) from error


def _field(reader: Any, name: str) -> Any:
    """A value of the header; None where it is not there."""
    field = reader.get_field(name)
    return None if field is None else field.contents()


def _entry(tensor: Any, heads: dict[str, int]) -> Entry:
    """One tensor under its canonical name; GGUF counts axes backwards."""
    shape = tuple(int(n) for n in reversed(tensor.shape))
    cuts = _pieces(tensor.name, shape)
    part = _BLOCK.fullmatch(tensor.name)
    count = heads.get(part[2]) if part else None
    return Entry(tensor.name, shape, _loader(tensor, count), cuts, all(map(derived, cuts)))


def _pieces(name: str, shape: tuple[int, ...]) -> dict[str, Cut]:
    """What a tensor holds; a name that is not known stays as it is."""
    block = _BLOCK.fullmatch(name)
    if block and block[2] in _EXPERTS and len(shape) == 3:
        place = f"model.layers.{block[1]}.mlp.experts.{{}}.{_EXPERTS[block[2]]}.{block[3]}"
        return experts([place], shape[0], shape[1])
    if block and block[2] in _LAYER:
        return {f"model.layers.{block[1]}.{_LAYER[block[2]]}.{block[3]}": lambda tensor: tensor}
    stem, _, end = name.rpartition(".")
    return {f"{_TOP[stem]}.{end}" if stem in _TOP else name: lambda tensor: tensor}


def _loader(tensor: Any, heads: int | None) -> Callable[[], Array]:
    """Reads and dequantises a tensor.

    Llama's query and key rows are stored with the two halves of each head's rotary pairs next to each other; they are
    put back.
    """

    def load() -> Array:
        import gguf
        import torch

        plain = {"F32": torch.float32, "F16": torch.float16, "F64": torch.float64}.get(tensor.tensor_type.name)
        shape = tuple(int(n) for n in reversed(tensor.shape))
        if plain is not None:
            values = torch.from_numpy(tensor.data.copy()).reshape(shape)
        else:
            values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type)).reshape(shape)
            values = values.to(torch.bfloat16) if tensor.tensor_type.name == "BF16" else values
        if heads:
            values = values.reshape(heads, len(values) // heads // 2, 2, -1).swapaxes(1, 2).reshape(shape)
        return values

    return load
