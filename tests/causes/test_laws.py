"""What holds for every cause: it is named first on its own reproduction, and no cause is named on a healthy run."""

import numpy as np
import pytest

from samepolicy.causes import Rung, all_causes
from samepolicy.causes.base import HEADINGS
from samepolicy.causes.making import toy, toy_run
from samepolicy.diagnose import diagnose
from samepolicy.records.side import Sampling

NAMES = sorted(all_causes())
SEEDS = (0, 7)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_cause_is_named_first_on_its_own_reproduction(name: str, seed: int):
    cause = all_causes()[name]
    run = cause.reproduce(np.random.default_rng(seed))
    found = diagnose(run, trainer=toy(**cause.reference), checkpoints=cause.checkpoints)
    assert found.findings, f"nothing named: {found}"
    first = found.findings[0]
    assert first.cause == name or first.cause in cause.equivalent
    assert found.verdict == "different"
    assert {f.cause for f in found.findings} <= {name, *cause.equivalent}
    if first.proof == "undone":
        assert first.explained is not None
        assert first.explained == pytest.approx(1.0, abs=0.12)
    assert first.fix
    assert first.rung == cause.rung.value
    assert {rung.name: rung.status for rung in found.ladder}[first.rung] == "failed"
    assert first.evidence in str([finding.as_dict() for finding in found.findings])


@pytest.mark.parametrize("name", NAMES)
def test_a_cause_is_explained(name: str):
    cause = all_causes()[name]
    assert list(cause.parts) == list(HEADINGS)
    assert cause.title.endswith(".")
    assert len(cause.title) < 120
    assert isinstance(cause.rung, Rung)
    assert cause.equivalent <= set(NAMES)


HEALTHY = {
    "bf16": {},
    "fp32": {"rollout": {"dtype": "float32"}, "trainer": {"dtype": "float32"}},
    "fp16 engine, fp32 trainer": {"rollout": {"dtype": "float16"}, "trainer": {"dtype": "float32"}},
    "bf16 engine, fp32 trainer": {"trainer": {"dtype": "float32"}},
    "cool": {"sampling": Sampling(temperature=0.6, max_tokens=24)},
    "hot": {"sampling": Sampling(temperature=1.3, max_tokens=16)},
    "greedy": {"sampling": Sampling(temperature=0.0, max_tokens=24)},
    "top-k": {"sampling": Sampling(top_k=20, max_tokens=24)},
    "short": {"sampling": Sampling(max_tokens=4)},
    "long": {"sampling": Sampling(max_tokens=64)},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_no_cause_is_named_on_a_healthy_run(name: str):
    run = toy_run(np.random.default_rng(3), **HEALTHY[name])
    found = diagnose(run, trainer=toy(dtype=run.trainer.dtype), checkpoints=("stale=0.05",))
    assert found.findings == ()
    assert found.verdict in {"same", "numerics"}


def test_causes_come_in_the_order_of_the_ladder():
    orders = [cause.rung.order for cause in all_causes().values()]
    assert orders == sorted(orders)
