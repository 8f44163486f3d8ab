"""Two sides that name one model read its files once, and come out as two loads would give them."""

from pathlib import Path

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.cli.check import _load
from samepolicy.engines import hf_load
from samepolicy.engines.base import engine
from samepolicy.records.side import Sampling

pytestmark = pytest.mark.full

PAIRS = [
    ({}, {}, 1),
    ({"dtype": "bfloat16"}, {}, 1),
    ({}, {"dtype": "bfloat16"}, 1),
    ({"dtype": "bfloat16"}, {"dtype": "float32"}, 1),
    ({"dtype": "float16"}, {"dtype": "float32", "weights_dtype": "bfloat16"}, 2),
    ({"dtype": "float32"}, {"dtype": "float32", "weights_dtype": "bfloat16"}, 1),
    ({"dtype": "bfloat16"}, {"dtype": "float16"}, 2),
    ({"dtype": "bfloat16", "head_dtype": "float32"}, {"dtype": "float32"}, 2),
    ({"dtype": "bfloat16", "attention": "eager"}, {"dtype": "float32"}, 2),
]


@pytest.mark.parametrize(("rollout", "trainer", "reads"), PAIRS, ids=str)
def test_one_model_is_read_once(
    tiny, ragged_ids: tuple[Ragged, Ragged], monkeypatch: pytest.MonkeyPatch, rollout: dict, trainer: dict, reads: int
):
    spec, read, count = f"hf:{tiny('llama')}", hf_load.read_model, []
    monkeypatch.setattr(hf_load, "read_model", lambda *path, **how: count.append(path) or read(*path, **how))
    sides = [{"device": "cpu", **side} for side in (rollout, trainer)]
    found = _load([(spec, side) for side in sides], lambda *_: None)
    assert len(count) == reads
    for one, side in zip(found, sides, strict=True):
        alone = engine(spec, **side)
        assert one.describe(Sampling()) == alone.describe(Sampling())
        np.testing.assert_array_equal(one.score(*ragged_ids).logp.values, alone.score(*ragged_ids).logp.values)


def test_two_models_are_two(tiny, tmp_path: Path):
    folders = [tiny("llama"), tiny("gpt2")]
    found = _load([(f"hf:{folder}", {"device": "cpu"}) for folder in folders], lambda *_: None)
    assert [one.path for one in found] == folders


@pytest.mark.parametrize("sides", [({"dtype": "bfloat16", "shift": 1}, {"shift": 1}), ({"shift": 1}, {"seed": 1})])
def test_faults_stay_on_their_side(sides: tuple[dict, dict]):
    found = _load([("toy:", side) for side in sides], lambda *_: None)
    assert [one.options for one in found] == [engine("toy:", **side).options for side in sides]
