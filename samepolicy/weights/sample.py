"""A few values and the norm of every tensor: what a weight sync is watched by, at the price of one small transfer."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from samepolicy.arrays import Array
from samepolicy.errors import InputError
from samepolicy.weights.hashing import mix
from samepolicy.weights.source import Source, open_source


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightSample:
    """What is looked at of a model's tensors; small enough to be sent between processes, and picklable.

    Attributes:
        values: by canonical name, values at places that depend on nothing but the shape, float32 [at most count].
        norms: by canonical name, the square root of the sum of squares; empty where norms were not asked for.
        dtypes: by canonical name, the dtype that the tensor is kept in.
    """

    values: Mapping[str, np.ndarray]
    norms: Mapping[str, float]
    dtypes: Mapping[str, str]

    def rounded(self, like: "WeightSample") -> Mapping[str, np.ndarray]:
        """The values as they are in another model's dtypes, for the names that it has, too."""
        import torch

        found = {}
        for name, values in self.values.items():
            if name in like.dtypes:
                dtype = getattr(torch, like.dtypes[name])
                found[name] = torch.from_numpy(values).to(dtype).to(torch.float32).numpy()
        return found


def sample(model: Any, *, count: int = 64, norms: bool = True) -> WeightSample:
    """Look at a few values of every tensor, gathered on its device and brought to the host together.

    Args:
        model: a live model: a torch module, a `vllm.LLM`, vLLM's own module inside a worker, an engine of this
            package, or a mapping of names to torch tensors.
        count: values per tensor.
        norms: take each tensor's norm, too, which reads all of it.

    Returns:
        The sample.

    Raises:
        InputError: no live model; a count below 1; or weights that vLLM has packed, so that no sync can change them.

    >>> import torch
    >>> seen = sample({"up.weight": torch.eye(3)}, count=4)
    >>> seen.values["up.weight"].shape, round(seen.norms["up.weight"], 3)
    ((4,), 1.732)
    """
    if not isinstance(count, int) or count < 1:
        raise InputError(f"count must be a whole number, 1 or more, but it is {count!r}.")
    source = live_source(model)
    tensors = {
        name: cut(stored)
        for entry in source.entries
        if not entry.transient
        for stored in (entry.load().detach(),)
        for name, cut in entry.pieces.items()
    }
    values, found = _gathered(list(tensors.values()), count, norms)
    by_name = dict(zip(tensors, values, strict=True))
    of_norm = dict(zip(tensors, found, strict=True)) if norms else {}
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    for one, other in source.tied:
        by_name[other], dtypes[other] = by_name[one], dtypes[one]
        if norms:
            of_norm[other] = of_norm[one]
    return WeightSample(values=by_name, norms=of_norm, dtypes=dtypes)


def live_source(model: Any) -> Source:
    """The tensors of a live model.

    Raises:
        InputError: it is a path, or vLLM has packed its weights.
    """
    from samepolicy.weights import live, vllm_module

    if isinstance(model, str):
        raise InputError(f"A sync is between live models, but {model!r} is a path; give the module or the LLM itself.")
    if not isinstance(model, Mapping):
        model = live.module_of(model)
        if not vllm_module.live_weights(model):
            raise InputError(
                "The CPU build of vLLM has packed its linear weights, so what is loaded into it later does not reach "
                "its kernels and there is no sync to watch; keep them live, or make a new engine for new weights."
            )
    return open_source(model)


def _gathered(tensors: list[Array], count: int, norms: bool) -> tuple[list[np.ndarray], list[float]]:
    """Values and norms of tensors: one transfer for each device that they are on."""
    import torch

    values: list[Any] = [None] * len(tensors)
    found = [float("nan")] * len(tensors)
    with torch.inference_mode():
        for device in {tensor.device for tensor in tensors}:
            places = [i for i, tensor in enumerate(tensors) if tensor.device == device]
            mine = [tensors[i] for i in places]
            parts = [_picked(tensor, count).to(torch.float32) for tensor in mine]
            sizes = [len(part) for part in parts]
            parts += _norms(mine) if norms else []
            flat = torch.cat([part.reshape(-1) for part in parts]).cpu().numpy()
            for i, one in zip(places, np.split(flat[: sum(sizes)], np.cumsum(sizes)[:-1]), strict=True):
                values[i] = one
            for i, norm in zip(places, flat[sum(sizes) :].tolist(), strict=False):
                found[i] = norm
    return values, found


def _norms(tensors: list[Array]) -> list[Array]:
    """The norm of each tensor, float32, on its device."""
    import torch

    floats = [tensor if tensor.is_floating_point() else tensor.to(torch.float32) for tensor in tensors]
    return [torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in floats]


def _picked(tensor: Array, count: int) -> Array:
    """A few values of a tensor, in its dtype and on its device."""
    places = _places(tensor.numel(), count, str(tensor.device))
    if tensor.is_contiguous():
        return tensor.view(-1)[places]
    rest, index = places, []
    for size in reversed(tensor.shape):
        index.append(rest % size)
        rest = rest // size
    return tensor[tuple(reversed(index))]


@lru_cache(maxsize=4096)
def _places(total: int, count: int, device: str) -> Any:
    """Indices spread over a tensor: one at a random place in each of `count` equal stretches, int64."""
    import torch

    kept = min(total, count)
    edges = np.arange(kept + 1, dtype=np.int64) * total // max(kept, 1)
    scatter = mix(np.arange(1, kept + 1, dtype=np.uint64)).astype(np.float64) / 2.0**64
    return torch.from_numpy(edges[:-1] + (scatter * np.diff(edges)).astype(np.int64)).to(device)
