"""Tensors, on the host and on a device: corrected like arrays, and without a gradient."""

import numpy as np
import pytest

from samepolicy import arrays
from tests.corrections.cases import apply, named, packed, same_stats
from tests.oracles.correction_batches import correction_batch


@pytest.mark.full
@named
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_torch_is_corrected_like_numpy_and_carries_no_gradient(name, dtype):
    import torch

    data = {n: torch.from_numpy(x) for n, x in correction_batch(6).items()}
    floats = ("trainer", "rollout", "current", "advantage")
    for n in floats:
        data[n] = data[n].to(getattr(torch, dtype)).requires_grad_()
    plain = {n: x.detach().to(torch.float32 if dtype == "bfloat16" else x.dtype).numpy() for n, x in data.items()}
    plain |= {n: data[n].numpy() for n in ("mask", "turn")}
    found, expected = apply(name, data), apply(name, plain)
    assert not found.weights.requires_grad
    assert found.weights.dtype == (torch.float64 if dtype == "float64" else torch.float32)
    np.testing.assert_array_equal(found.weights.numpy(), expected.weights)
    np.testing.assert_array_equal(found.keep.numpy(), expected.keep)
    same_stats(found.stats, expected.stats)
    loss = (found.weights * torch.where(data["mask"], data["trainer"], 0.0)).sum()
    loss.backward()
    torch.testing.assert_close(data["trainer"].grad, found.weights.to(data["trainer"].dtype))


@pytest.mark.full
@named
@pytest.mark.parametrize("layout", [dict, packed])
def test_the_device_path_gives_what_the_host_path_gives(name, layout, monkeypatch):
    import torch

    data = layout(correction_batch(7, rows=20))
    offsets = data.pop("offsets", None)
    whole = apply(name, data, offsets=offsets)
    for module in ("samepolicy.arrays", "samepolicy.blocks", "samepolicy.corrections.correction"):
        monkeypatch.setattr(f"{module}.on_host", lambda x: not arrays.is_torch(x))
    monkeypatch.setattr("samepolicy.corrections.correction.view", lambda x: x.detach() if arrays.is_torch(x) else x)
    monkeypatch.setattr("samepolicy.blocks.TOKENS_DEVICE", 100)
    monkeypatch.setattr(arrays, "to_numpy", lambda x: x.detach().numpy() if arrays.is_torch(x) else np.asarray(x))
    monkeypatch.setattr("samepolicy.corrections.statistics.to_numpy", arrays.to_numpy)
    monkeypatch.setattr("samepolicy.blocks.to_numpy", arrays.to_numpy)
    found = apply(name, {n: torch.from_numpy(x) for n, x in data.items()}, offsets=offsets)
    assert isinstance(found.stats.table, torch.Tensor)
    np.testing.assert_allclose(found.weights.numpy(), whole.weights, rtol=1e-12)
    np.testing.assert_array_equal(found.keep.numpy(), whole.keep)
    same_stats(found.stats, whole.stats)
