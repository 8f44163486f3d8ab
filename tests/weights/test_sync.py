"""Weight syncs between live modules: what arrived, what did not, what was sent twice."""

import pickle
from typing import Any

import pytest
import torch

from samepolicy.errors import InputError
from samepolicy.weights import WeightSync, sample
from tests.weights.conftest import make

pytestmark = pytest.mark.full


def step(model: Any, lr: float = 0.01) -> None:
    """What an optimizer does to every tensor."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(lr * torch.randn_like(parameter))


@pytest.fixture(params=["float32", "bfloat16"])
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A float32 trainer and an engine of the same weights."""
    return make("qwen3_moe"), make("qwen3_moe").to(getattr(torch, request.param))


def test_a_run_without_faults_has_no_alarm(pair: tuple[Any, Any]):
    trainer, engine = pair
    sync = WeightSync(trainer, engine)
    for i in range(4):
        engine.load_state_dict(trainer.state_dict())
        report = sync(step=i)
        assert report.ok, str(report)
        assert report.tensors == 45
        step(trainer)
    assert report.changed == 1
    assert report.visible > 0.2
    assert report.metrics()["samepolicy/weights/alarms"] == 0
    assert set(report.metrics()) > {"samepolicy/weights/seconds", "samepolicy/weights/visible"}


@pytest.mark.parametrize("norms", [True, False])
def test_every_tensor_that_was_not_sent_is_named_with_its_age(pair: tuple[Any, Any], norms: bool):
    trainer, engine = pair
    sync = WeightSync(trainer, engine, norms=norms)
    engine.load_state_dict(trainer.state_dict())
    assert sync(step=0).ok
    left_out = "model.layers.1.self_attn.k_proj.weight"
    for i in (1, 2):
        step(trainer)
        sent = trainer.state_dict()
        sent[left_out] = engine.state_dict()[left_out]
        engine.load_state_dict(sent)
        report = sync(step=i)
        assert (report.wrong, dict(report.stale)) == ((left_out,), {left_out: 0})
        assert report.alarms[0] == (
            f"The engine did not receive 1 of 45 tensors; 1 holds what was sent at step 0 ({left_out})."
        )


def test_one_expert_of_a_fused_tensor_is_named(pair: tuple[Any, Any]):
    trainer, engine = pair
    sync = WeightSync(trainer, engine)
    with torch.no_grad():
        engine.model.layers[0].mlp.experts.gate_up_proj[3, :32] *= 1.5
    assert sync().wrong == ("model.layers.0.mlp.experts.3.gate_proj.weight",)


def test_the_same_weights_twice(pair: tuple[Any, Any]):
    trainer, engine = pair
    sync = WeightSync(trainer, engine)
    assert sync(step=1).ok
    step(trainer)
    report = sync(step=2)
    assert len(report.wrong) == len(report.stale) == 45
    assert report.alarms[1] == "What the engine holds is the same as at step 1, though the trainer sent something else."


def test_an_update_that_changed_nothing(pair: tuple[Any, Any]):
    sync = WeightSync(*pair)
    assert sync(step=1).ok
    assert sync(step=2, updated=False).ok
    report = sync(step=3)
    assert report.alarms == ("Nothing the trainer holds has changed since step 2, though an update was made.",)
    assert (report.changed, report.visible) == (0, 0)


def test_an_update_below_the_engines_rounding_is_no_alarm():
    trainer, engine = make("llama"), make("llama").to(torch.bfloat16)
    sync = WeightSync(trainer, engine, norms=False)
    assert sync().ok
    with torch.no_grad():
        for parameter in trainer.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).float() * (1 + 1e-5))
    engine.load_state_dict(trainer.state_dict())
    report = sync()
    assert report.ok
    assert (report.changed > 0.9, report.visible) == (True, 0)


def test_norms_see_what_lies_between_the_samples():
    trainer, engine = make("llama"), make("llama")
    with torch.no_grad():
        engine.model.layers[0].mlp.up_proj.weight[5:9] = 0
    assert WeightSync(trainer, engine, count=4)().wrong == ("model.layers.0.mlp.up_proj.weight",)
    assert WeightSync(trainer, engine, count=4, norms=False)().ok


def test_values_that_are_not_finite():
    trainer, engine = make("llama"), make("llama")
    for model in (trainer, engine):
        model.model.norm.weight.data[3] = float("nan")
    report = WeightSync(trainer, engine)()
    assert report.alarms == (
        "The trainer holds values that are not finite in 1 tensor (model.norm.weight).",
        "The engine holds values that are not finite in 1 tensor (model.norm.weight).",
    )


def test_a_stale_copy_of_a_tied_head():
    trainer = make("qwen2")
    engine = {name: tensor.clone() for name, tensor in trainer.state_dict().items()}
    sync = WeightSync(trainer, engine)
    assert sync(step=0).ok
    step(trainer)
    engine |= {n: t.clone() for n, t in trainer.state_dict().items() if n != "lm_head.weight"}
    assert dict(sync(step=1).stale) == {"lm_head.weight": 0}


def test_missing_tensors_are_an_alarm():
    trainer = make("llama")
    engine = {n: t for n, t in trainer.state_dict().items() if "layers.1.mlp" not in n}
    report = WeightSync(trainer, engine)()
    assert len(report.missing) == 3
    assert report.alarms[0].startswith("The engine has no model.layers.1.mlp.")


def test_samples_travel_between_processes():
    trainer, engine = make("llama"), make("llama").to(torch.bfloat16)
    sync = WeightSync()
    sent, received = (pickle.loads(pickle.dumps(sample(model))) for model in (trainer, engine))
    assert sync.check(sent, received, step=1).ok
    step(trainer)
    assert not sync.check(sample(trainer), received, step=2).ok


def test_views_and_strides_are_the_same_values():
    tensor = torch.randn(30, 50)
    plain, turned = (sample({"x": t}).values["x"] for t in (tensor, tensor.T.contiguous().T))
    assert (plain == turned).all()
    assert len(plain) == 64
    assert len(set(plain.tolist())) == 64


def test_bad_calls_are_refused():
    model, small = make("llama"), torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match="is a path"):
        WeightSync(model, "folder")
    with pytest.raises(InputError, match="count must be"):
        sample(model, count=0)
    with pytest.raises(InputError, match="history must be"):
        WeightSync(model, model, history=0)
    with pytest.raises(InputError, match="without both models"):
        WeightSync(model)()
    with pytest.raises(InputError, match="no tensor name in common"):
        WeightSync(model, small)()
    with pytest.raises(InputError, match="have 8 and 4 values"):
        WeightSync().check(sample(model, count=8), sample(model, count=4))
