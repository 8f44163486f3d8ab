"""`samepolicy check` on a real model."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from samepolicy.engines import hf
from samepolicy.testing import smollm2_path
from tests.cli.conftest import Call

pytestmark = pytest.mark.full
FLOAT32 = ("--rollout-dtype", "float32", "--trainer-dtype", "float32", "--max-tokens", "8", "--device", "cpu")


@pytest.fixture(scope="module", autouse=True)
def loaded_once() -> Iterator[None]:
    """Both tests ask for the same engine, which takes long to load."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf, "load", cache(hf.load))
        yield


@pytest.fixture
def three(tmp_path: Path) -> Path:
    path = tmp_path / "three.txt"
    path.write_text("Why does ice float on water?\nName the planets.\nWhat is 17 times 24?\n")
    return path


def test_two_float32_sides_are_the_same_policy(call: Call, three: Path):
    done = call("check", smollm2_path(), "--prompts", three, *FLOAT32, "--json")
    assert done.code == 0
    assert done.value["verdict"] in ("same", "numerics")
    assert done.value["metrics"]["logp_diff"]["mean"] < 1e-4


def test_another_temperature_is_another_policy(call: Call, three: Path):
    done = call("check", f"hf:{smollm2_path()}", "--prompts", three, *FLOAT32, "--trainer-temperature", 0.7, "--json")
    assert (done.code, done.value["verdict"]) == (1, "different")
    assert "temperature 1.0 against 0.7" in done.value["sentence"]
