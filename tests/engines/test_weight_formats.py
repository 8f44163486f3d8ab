"""Weights rounded as a format keeps them, against torch's own eight-bit floats and a plain loop."""

import numpy as np
import pytest

from samepolicy.engines.weight_formats import FORMATS, rounded
from samepolicy.errors import InputError


@pytest.fixture(scope="module")
def weight() -> np.ndarray:
    rng = np.random.default_rng(3)
    spread = np.exp(3 * rng.standard_normal((24, 1)))  # some rows are far below the largest one
    return (0.02 * spread * rng.standard_normal((24, 256))).astype(np.float32)


@pytest.mark.full
@pytest.mark.parametrize("scale", ["channel", "tensor", "none"])
def test_eight_bit_floats_are_torchs(weight: np.ndarray, scale: str):
    import torch

    given, top = torch.tensor(weight), torch.finfo(torch.float8_e4m3fn).max
    step = {"channel": given.abs().amax(-1, keepdim=True), "tensor": given.abs().max(), "none": torch.tensor(top)}
    unit = step[scale] / top
    expected = (given / unit).to(torch.float8_e4m3fn).float() * unit
    name = {"channel": "fp8", "tensor": "fp8_tensor", "none": "fp8_unscaled"}[scale]
    assert (rounded(given, name) == expected).all()
    assert (rounded(weight, name) == expected.numpy()).all()


@pytest.mark.parametrize(("name", "levels", "group"), [("int8", 127, 256), ("int6", 31, 256), ("int4_g32", 7, 32)])
def test_integers_are_those_of_a_plain_loop(weight: np.ndarray, name: str, levels: int, group: int):
    expected = np.empty_like(weight)
    for i, row in enumerate(weight):
        for begin in range(0, len(row), group):
            part = row[begin : begin + group]
            step = np.abs(part).max() / levels
            expected[i, begin : begin + group] = [round(float(w) / step) * step for w in part]
    np.testing.assert_allclose(rounded(weight, name), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("name", FORMATS)
def test_zeros_stay_zeros_and_rounding_twice_changes_little(weight: np.ndarray, name: str):
    assert not rounded(np.zeros((2, 128), np.float32), name).any()
    once = rounded(weight, name)
    np.testing.assert_allclose(rounded(once, name), once, rtol=1e-5, atol=1e-9)


def test_groups_that_do_not_divide_the_width_are_whole_channels():
    weight = np.random.default_rng(0).standard_normal((3, 100)).astype(np.float32)
    assert (rounded(weight, "int4_g128") == rounded(weight, "int4")).all()


def test_an_unknown_format_is_refused():
    with pytest.raises(InputError, match="'int5' is not known; it can be int8"):
        rounded(np.zeros((2, 2), np.float32), "int5")
