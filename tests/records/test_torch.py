"""Torch tensors at the door: any dtype, nested in lists or padded, with gradients."""

import numpy as np
import pytest
import torch

from samepolicy.records.run import Run

pytestmark = pytest.mark.full


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_tensors_become_the_numpy_values(dtype: torch.dtype) -> None:
    padded = torch.tensor([[-0.5, -1.25], [-3.0, 0.0]], dtype=dtype, requires_grad=True)
    mask = torch.tensor([[1, 1], [1, 0]])
    rows = [padded[0], padded[1, :1]]
    expected = [[-0.5, -1.25], [-3.0]]
    from_padded = Run.from_padded(
        mask=mask, rollout_logp=padded, trainer_logp=padded, reward=torch.ones(2, dtype=dtype)
    )
    from_lists = Run.from_lists(
        rollout_logp=rows, mask=[[1, 1], [True]], trainer_logp=rows, reward=list(torch.ones(2, dtype=dtype))
    )
    for run in (from_padded, from_lists):
        assert [row.tolist() for row in run["rollout_logp"]] == expected
        assert run["rollout_logp"].values.dtype == (np.float64 if dtype == torch.float64 else np.float32)
        assert run["reward"].tolist() == [1.0, 1.0]
        assert run.tokens == 3
