"""Hashes and sketches against plain loops over Python's own integers, and what they are for."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samepolicy.weights.hashing import Digest, Hasher, Hashes, mix, multipliers
from samepolicy.weights.relate import multiple, relative_error
from samepolicy.weights.tensor import CASTS, TensorPrint, take

pytestmark = pytest.mark.full
MASK = 2**64 - 1


def mixed(x: int) -> int:
    """Splitmix64's finaliser in Python's integers."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def by_loops(matrix: list[list[int]]) -> Hashes:
    """The formulas of the module, number by number."""
    weight = [mixed((i + 1) * 0x9E3779B97F4A7C15 & MASK) | 1 for i in range(max(len(matrix), len(matrix[0])))]
    rows = [mixed(sum(b * weight[j] for j, b in enumerate(row)) & MASK) for row in matrix]
    turned = list(zip(*matrix, strict=True))
    columns = [mixed(sum(b * weight[i] for i, b in enumerate(column)) & MASK) for column in turned]
    whole = [sum(h * weight[i] for i, h in enumerate(found)) & MASK for found in (rows, columns)]
    return Hashes(whole[0], whole[1], sum(rows) & MASK, sum(columns) & MASK)


@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 2**32))
def test_hashes_are_the_formulas(rows: int, columns: int, seed: int):
    matrix = np.random.default_rng(seed).integers(-(2**31), 2**31, (rows, columns))
    hasher = Hasher(rows, columns, "cpu")
    for block in np.array_split(matrix, 3):
        hasher.add(torch.from_numpy(block))
    assert hasher.hashes() == by_loops(matrix.tolist())


def test_longer_lists_of_multipliers_begin_with_shorter_ones():
    assert np.array_equal(multipliers(100)[:10], multipliers(10))
    assert len(set(multipliers(10_000).tolist())) == 10_000
    assert (multipliers(10_000) % 2 == 1).all()
    assert mix(np.array([5], dtype=np.uint64))[0] == mixed(5)


def test_a_block_does_not_show_in_the_fingerprint():
    tensor = torch.randn(1100, 700)
    found, again = take(tensor), take(tensor.T.contiguous().T)
    assert (found.digest, found.hashes) == (again.digest, again.hashes)
    assert found.hashes[""].whole == take(tensor.T).hashes[""].turned
    np.testing.assert_array_equal(found.sketch, again.sketch)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_cast_is_what_torch_makes_of_it(dtype: torch.dtype):
    tensor = torch.randn(37, 11).to(dtype)
    found = take(tensor)
    assert set(found.hashes) == {"", *CASTS[found.dtype]}
    for name in CASTS[found.dtype]:
        cast = tensor.to(getattr(torch, name))
        assert found.hashes[name] == take(cast).hashes[""] == take(cast.to(torch.float32)).hashes[""]
        assert take(cast).digest == take(cast.to(torch.float32)).digest == take(cast.double()).digest


def test_values_count_and_not_how_they_are_kept():
    tensor = torch.tensor([[0.0, 1.5], [-0.0, -2.0]])
    for other in (tensor.to(torch.bfloat16), tensor.double(), torch.tensor([[-0.0, 1.5], [0.0, -2.0]])):
        assert take(other).digest == take(tensor).digest
        assert take(other).hashes[""] == take(tensor).hashes[""]
    assert take(torch.tensor([0.1], dtype=torch.float64)).digest != take(torch.tensor([0.1])).digest


@given(st.integers(1, 5000), st.integers(0, 2**32))
def test_a_digest_is_its_formula(count: int, seed: int):
    values = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    padded = np.concatenate([values, np.zeros(-count % 2048, np.float32)])
    lines = padded.view(np.uint64).reshape(-1, 1024).tolist()
    weight = multipliers(1024).tolist()
    found = [mixed(sum(b * w for b, w in zip(line, weight, strict=True)) & MASK) for line in lines]
    digest = Digest()
    digest.add(torch.from_numpy(values))
    assert digest.value() == sum(h * w for h, w in zip(found, weight, strict=False)) & MASK


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_every_single_bit_counts(seed: int):
    rng = np.random.default_rng(seed)
    tensor = torch.from_numpy(rng.standard_normal((5, 9), dtype=np.float32))
    edited = tensor.clone()
    edited.view(torch.int32).view(-1)[rng.integers(45)] ^= 1 << int(rng.integers(23))
    assert take(edited).digest != take(tensor).digest
    assert take(edited).hashes[""].whole != take(tensor).hashes[""].whole


def test_statistics_are_numpys():
    tensor = torch.randn(900, 400)
    tensor[3, 4], tensor[5, 6], tensor[7, 7] = float("nan"), float("inf"), float("-inf")
    found, finite = take(tensor), tensor[torch.isfinite(tensor)].double().numpy()
    assert (found.nans, found.infinities, found.shape, found.dtype) == (1, 2, (900, 400), "float32")
    assert found.norm == pytest.approx(np.linalg.norm(finite), rel=1e-6)
    assert (found.low, found.high) == (finite.min(), finite.max())
    assert take(torch.zeros(3)).zero
    assert take(torch.ones(3)).constant
    assert not take(torch.ones(3)).zero
    assert np.isnan(take(torch.full((3,), float("nan"))).low)


@pytest.mark.parametrize("shape", [(), (1,), (300,), (7, 5), (3, 4, 5), (0, 4), (600, 700)])
def test_every_shape(shape: tuple[int, ...]):
    tensor = torch.randn(shape)
    found = take(tensor)
    assert found.shape == shape
    assert found.norm == pytest.approx(float(tensor.double().norm()), rel=1e-6)
    assert np.linalg.norm(found.sketch) == pytest.approx(found.norm, rel=0.3)


@pytest.mark.parametrize("kind", ["dense", "one value", "one row", "one column", "a constant"])
def test_a_relative_error_comes_out_of_the_sketches(kind: str):
    torch.manual_seed(1)
    a = torch.randn(700, 600)
    step = torch.zeros_like(a)
    part = {"one value": (3, 5), "one row": (8,), "one column": (slice(None), 9)}.get(kind, (...,))
    step[part] = torch.randn_like(step[part]) if kind != "a constant" else torch.ones_like(step[part])
    b = a + 0.01 * step
    expected = float((b - a).double().norm() / a.double().norm())
    assert relative_error(take(a), take(b)) == pytest.approx(expected, rel=0.3 if "column" in kind else 0.15)


@pytest.mark.parametrize(
    ("factor", "dtype"), [(0.5, "float32"), (-1.0, "float32"), (1.001, "float32"), (3.0, "bfloat16")]
)
def test_a_multiple_is_found(factor: float, dtype: str):
    a = torch.randn(50, 60)
    b = (a * factor).to(getattr(torch, dtype))
    assert multiple(take(a), take(b)) == pytest.approx(factor, rel=1e-3)
    b[3] = 0
    assert multiple(take(a), take(b)) is None
    assert multiple(take(a), take(a + 1e-3 * torch.randn(50, 60))) is None


def test_a_fingerprint_survives_json():
    for tensor in (torch.randn(5, 6), torch.full((3,), float("nan")), torch.arange(4), torch.tensor(True)):
        found = take(tensor)
        again = TensorPrint.from_dict(found.as_dict())
        assert again.as_dict() == found.as_dict()
        assert (again.digest, again.hashes) == (found.digest, found.hashes)
