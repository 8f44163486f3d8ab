"""Canonical names: those of a Hugging Face checkpoint, whatever wrapped, fused or renamed the tensors since.

A tensor that holds several others (fused experts) is cut into those that a checkpoint names.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from samepolicy.arrays import Array

Cut: TypeAlias = Callable[[Array], Array]
"""Takes one canonical tensor out of a stored one."""

_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_layer|routed_experts)\."
)
_OUTER = re.compile(r"^(?:(?:module|policy|base_model\.model)\.)+")
_BARE = (("model.", ("layers", "embed_tokens", "norm")), ("transformer.", ("h", "wte", "wpe", "ln_f")))
_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_DERIVED = re.compile(r"(?:rotary_emb\.(?:original_)?inv_freq|\.attn\.(?:masked_)?bias|rope_freqs\.weight)$")


@dataclass(frozen=True)
class Entry:
    """One stored tensor.

    Attributes:
        name: its own name.
        shape: its shape.
        load: reads it.
        pieces: by canonical name, what is cut out of it.
        transient: see `TensorPrint`.
    """

    name: str
    shape: tuple[int, ...]
    load: Callable[[], Array]
    pieces: Mapping[str, Cut]
    transient: bool = False


def canonical(name: str) -> str:
    """The name that a checkpoint has for a tensor.

    >>> canonical("module._orig_mod.layers.0.mlp.up_proj.base_layer.weight")
    'model.layers.0.mlp.up_proj.weight'
    >>> canonical("model.layers.0.block_sparse_moe.experts.3.w1.weight")
    'model.layers.0.mlp.experts.3.gate_proj.weight'
    """
    name = _OUTER.sub("", _WRAPPERS.sub("", name))
    first = name.partition(".")[0]
    for prefix, parts in _BARE:
        if first in parts:
            name = prefix + name
    if ".block_sparse_moe." in name:
        name = name.replace(".block_sparse_moe.", ".mlp.")
        name = re.sub(r"(\.experts\.\d+\.)(w[123])\.", lambda m: f"{m[1]}{_MIXTRAL[m[2]]}.", name)
    return name


def derived(name: str) -> bool:
    """Whether a tensor is computed from the config, so that a checkpoint need not hold it."""
    return bool(_DERIVED.search(name))


def entries(shapes: Mapping[str, tuple[int, ...]], load: Callable[[str], Array]) -> list[Entry]:
    """Entries of named tensors under canonical names, fused experts cut apart.

    Args:
        shapes: by stored name, the shape.
        load: reads a tensor by its stored name.
    """
    return [
        Entry(name, shape, _bound(load, name), pieces(canonical(name), shape, shapes, name), derived(canonical(name)))
        for name, shape in shapes.items()
    ]


def pieces(name: str, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]], stored: str) -> dict[str, Cut]:
    """What a stored tensor holds, by canonical name.

    Fused experts are [experts, 2 × width, hidden] and [experts, hidden, width]; others keep their name.
    """
    parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
    where, _, last = name.rpartition(".")
    place = stored.rpartition(".")[0]
    both = tuple(shapes.get(f"{place}.{key}", ()) for key in parts)
    if last not in parts or not where.endswith(".experts") or not _plain_experts(*both):
        return {name: _whole}
    names = [f"{where}.{{}}.{part}.weight" for part in parts[last]]
    return experts(names, shape[0], shape[1] // len(names))


def experts(names: Iterable[str], count: int, width: int) -> dict[str, Cut]:
    """Cuts of a fused tensor [experts, len(names) × width, …] into each expert's matrices, one after the other.

    Args:
        names: names with a place for the expert's number.
        count: experts.
        width: rows of each matrix.
    """
    return {
        name.format(expert): _expert(expert, place * width, width)
        for expert in range(count)
        for place, name in enumerate(names)
    }


def rows(start: int, count: int) -> Cut:
    """Cuts out some rows."""
    return lambda tensor: tensor[start : start + count]


def _expert(expert: int, start: int, width: int) -> Cut:
    return lambda tensor: tensor[expert, start : start + width]


def _whole(tensor: Array) -> Array:
    return tensor


def _bound(load: Callable[[str], Array], name: str) -> Callable[[], Any]:
    return lambda: load(name)


def _plain_experts(gate_up: tuple[int, ...], down: tuple[int, ...]) -> bool:
    """Whether two fused tensors are laid out as rows of each expert's matrices."""
    if not len(gate_up) == len(down) == 3:
        return False
    return gate_up[0] == down[0] and gate_up[1] == 2 * down[2] and gate_up[2] == down[1]
