"""Weights as a live vLLM holds them: fused projections and experts cut apart, padding left out.

The CPU build packs linear weights for its kernels and drops the originals. What its kernel multiplies by is read by
sending the identity matrix through it, which gives each weight exactly (one product with 1, the others with 0). A row
with a NaN or an infinity comes out as NaN as a whole.
"""

from collections.abc import Callable, Iterator
from typing import Any

from samepolicy.arrays import Array
from samepolicy.errors import InputError
from samepolicy.weights.files import EMBEDDINGS, HEAD, refuse_quantised
from samepolicy.weights.live import check
from samepolicy.weights.names import Cut, Entry, canonical, experts, rows
from samepolicy.weights.source import Source

PROBE = 512
"""Rows of the identity that go through a kernel together."""


def open_module(model: Any) -> Source:
    """The parameters and buffers of vLLM's module.

    Raises:
        InputError: sharded or quantised weights, or packed ones that cannot be read.
    """
    found, packed = [], 0
    for name, part in model.named_modules():
        packed += _is_packed(part)
        for key, parameter in part.named_parameters(recurse=False):
            found.append(_parameter(model, f"{name}.{key}".lstrip("."), part, parameter))
        for key, buffer in part.named_buffers(recurse=False):
            full = f"{name}.{key}".lstrip(".")
            found.append(Entry(full, tuple(buffer.shape), _kept(buffer), {canonical(full): _whole}, True))
    refuse_quantised("This vLLM", [entry.name for entry in found if not entry.transient])
    notes = (f"{packed} packed weights of vLLM were read through the kernels that use them",) if packed else ()
    return Source(label="vLLM", entries=found, tied=tuple(_tied(model)), notes=notes)


def live_weights(model: Any) -> bool:
    """Whether every linear weight is where new ones can be loaded, which those that the CPU build packs are not."""
    return not any(_is_packed(part) for part in model.modules())


def _parameter(model: Any, name: str, part: Any, parameter: Array) -> Entry:
    """A parameter of one of vLLM's layers."""
    check(name, parameter)
    if int(getattr(part, "tp_size", 1) or 1) > 1:
        raise InputError(f"{name} is shared between {part.tp_size} processes; only tensor_parallel_size=1 can be read.")
    where, _, key = name.rpartition(".")
    if key in ("w13_weight", "w2_weight", "w13_bias", "w2_bias"):
        return _experts(name, part, parameter)
    load, shape = _kept(parameter), tuple(parameter.shape)
    if key == "weight" and _is_packed(part):
        load, shape = _probe(part), (_outputs(part, shape), int(getattr(part, "input_size", 0) or shape[-1]))
    return Entry(name, shape, load, _cuts(model, where, key, part), False)


def _cuts(model: Any, where: str, key: str, part: Any) -> dict[str, Cut]:
    """What a layer's parameter holds: parts of a fused projection, or a table without its padding."""
    stem, _, last = where.rpartition(".")
    names = getattr(model, "packed_modules_mapping", {}).get(last, [last])
    sizes = getattr(part, "output_sizes", None)
    if len(names) > 1 and sizes is not None and len(names) == len(sizes):
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return {
            canonical(f"{stem}.{one}.{key}"): rows(start, size)
            for one, start, size in zip(names, starts, sizes, strict=True)
        }
    table = getattr(part, "org_vocab_size", None)
    return {canonical(f"{where}.{key}".lstrip(".")): _whole if table is None else rows(0, int(table))}


def _experts(name: str, part: Any, parameter: Array) -> Entry:
    """The experts' fused matrices, [experts, 2 × width, hidden] and [experts, hidden, width]."""
    from samepolicy.weights.vllm_experts import unpacked

    where, _, key = name.rpartition(".")
    first, kind = key.startswith("w13"), key.rpartition("_")[2]
    known = canonical(f"{where}.x")[: -len(".x")]
    names = [f"{known}.{{}}.{one}.{kind}" for one in (("gate_proj", "up_proj") if first else ("down_proj",))]
    width = parameter.shape[1] // len(names)
    return Entry(name, tuple(parameter.shape), unpacked(part, parameter), experts(names, len(parameter), width), False)


def _is_packed(part: Any) -> bool:
    """Whether a layer multiplies by something else than its parameter; an embedding looks its rows up in it."""
    import torch

    kernel = getattr(part, "cpu_linear", None)
    table = hasattr(part, "org_vocab_size") and type(part).__name__ != "ParallelLMHead"
    return kernel not in (None, torch.nn.functional.linear) and not table and hasattr(part, "weight")


def _outputs(part: Any, shape: tuple[int, ...]) -> int:
    """Rows of a packed weight."""
    for name in ("output_size", "num_embeddings_padded"):
        if getattr(part, name, None):
            return int(getattr(part, name))
    return int(shape[0])


def _probe(part: Any) -> Callable[[], Array]:
    """Reads a packed weight through its kernel."""

    def load() -> Array:
        import torch

        dtype = part.weight.dtype
        width = int(getattr(part, "input_size", 0) or getattr(part, "embedding_dim", 0) or part.weight.shape[-1])
        with torch.inference_mode():
            blocks = [
                part.cpu_linear(_unit_rows(start, min(start + PROBE, width), width, dtype), part.weight, None).to(dtype)
                for start in range(0, width, PROBE)
            ]
            return torch.cat(blocks).T.contiguous()

    return load


def _unit_rows(start: int, stop: int, width: int, dtype: Any) -> Array:
    """Rows of the identity matrix."""
    import torch

    block = torch.zeros(stop - start, width, dtype=dtype)
    block[torch.arange(stop - start), torch.arange(start, stop)] = 1
    return block


def _tied(model: Any) -> Iterator[tuple[str, str]]:
    """Embedding and head, where one parameter serves both and the head has no packed copy of its own."""
    parts = {canonical(f"{name}.weight"): part for name, part in model.named_modules() if hasattr(part, "weight")}
    head = parts.get(HEAD)
    for name in EMBEDDINGS:
        if name not in parts:
            continue
        shared = head is not None and head.weight.data_ptr() == parts[name].weight.data_ptr()
        if head is None or (shared and not _is_packed(head)):
            yield name, HEAD


def _kept(tensor: Array) -> Callable[[], Array]:
    return lambda: tensor


def _whole(tensor: Array) -> Array:
    return tensor
