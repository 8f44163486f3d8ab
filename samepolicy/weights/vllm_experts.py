"""Experts of a live vLLM: as they are on an accelerator, put back into rows where the CPU build has packed them.

Packing only moves numbers. Where each one goes is found by packing numbers that say where they come from.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from samepolicy.arrays import Array
from samepolicy.errors import InputError

BASE = 128
"""Whole numbers below it are exact in every dtype that weights have."""


def unpacked(part: Any, parameter: Array) -> Callable[[], Array]:
    """Reads an expert parameter as rows.

    Args:
        part: vLLM's layer of experts.
        parameter: one of its parameters, [experts, rows, columns] (biases [experts, rows]).

    Raises:
        InputError: it is laid out in a way that is not known here.
    """
    kernel = getattr(getattr(part, "quant_method", None), "moe_kernel", None)
    method = getattr(kernel, "fused_experts", None)
    name, isa = type(method).__name__, getattr(method, "isa", None)
    if parameter.ndim != 3 or "Triton" in name or getattr(method, "_use_zentorch", False):
        return lambda: parameter
    width = getattr(getattr(part, "moe_config", None), "intermediate_size_per_partition", None)
    if isa is None or width not in (parameter.shape[1] // 2, parameter.shape[2]):
        raise InputError(
            f"The experts of this vLLM are laid out for {name} in a way that is not known here, so they cannot be "
            "compared; compare its model folder."
        )

    def load() -> Array:
        import torch

        order = _order(tuple(parameter.shape[1:]), str(parameter.dtype), isa)
        return torch.stack([torch.take(expert, order) for expert in parameter.detach()])

    return load


@lru_cache(maxsize=8)
def _order(shape: tuple[int, int], dtype: str, isa: str) -> Array:
    """Where each number of a matrix lies after packing, int64 [rows, columns].

    Raises:
        InputError: packing does more than move numbers.
    """
    import torch
    from vllm._custom_ops import cpu_prepack_moe_weight

    count = shape[0] * shape[1]
    origin = torch.zeros(count, dtype=torch.int64)
    rest, place = torch.arange(count), 1
    while place < count:
        digits = (rest % BASE).to(getattr(torch, dtype.removeprefix("torch."))).reshape(1, *shape)
        origin += place * cpu_prepack_moe_weight(digits, isa).reshape(-1).to(torch.int64)
        rest, place = rest // BASE, place * BASE
    order = torch.empty(count, dtype=torch.int64)
    if not torch.equal(origin.sort().values, torch.arange(count)):
        raise InputError(
            "The CPU build of this vLLM packs experts in a way that cannot be undone; compare its model folder."
        )
    order[origin] = torch.arange(count)
    return order.reshape(shape)
