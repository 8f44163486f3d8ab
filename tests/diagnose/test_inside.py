"""Diagnoses that are told what was seen inside the engines: tensors compared, and the layer where they part."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import samepolicy as sp
from samepolicy import weights
from samepolicy.arrays import Ragged
from samepolicy.cli.main import status
from samepolicy.errors import InputError
from samepolicy.layers import Ask, compare
from samepolicy.records.side import Sampling
from tests.layers.conftest import ROWS, make

pytestmark = pytest.mark.full

PROMPTS = Ragged.from_lists([[5 + i, 9, 33 + 2 * i, 60 - i] for i in range(12)], dtype=np.int64)
SAMPLING = Sampling(max_tokens=24, seed=3)


def saved(model: nn.Module, folder: Path) -> str:
    model.save_pretrained(folder)
    return str(folder)


def moved(model: nn.Module, seed: int) -> nn.Module:
    """The weights some updates earlier."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The trainer's model, an earlier one, and one whose second layer is that of the earlier one."""
    place = tmp_path_factory.mktemp("models")
    now, old, mixed = make("llama"), moved(make("llama"), 1), make("llama")
    mixed.model.layers[1].load_state_dict(old.model.layers[1].state_dict())
    return {name: saved(m, place / name) for name, m in {"now": now, "old": old, "mixed": mixed}.items()}


def scored(folders: dict[str, str], rollout: Any) -> tuple[sp.Run, Any]:
    """What a rollout samples, and the trainer's engine."""
    trainer = sp.engine(f"hf:{folders['now']}", dtype="float32")
    run = rollout.generate(PROMPTS, SAMPLING)
    return run, trainer


@pytest.mark.parametrize(("held", "cause"), [("old", "stale_weights"), ("mixed", "partial_sync")])
def test_old_tensors_are_proved_by_comparing_them(folders: dict[str, str], held: str, cause: str):
    run, trainer = scored(folders, sp.engine(f"hf:{folders[held]}", dtype="float32"))
    seen = weights.compare(folders["now"], folders[held], checkpoints=[folders["old"]])
    found = sp.diagnose(run, trainer=trainer, checkpoints=[folders["old"]], weights=seen)
    first = found.findings[0]
    assert (found.verdict, first.cause, first.proof, first.side) == ("different", cause, "structural", "rollout")
    assert first.parameters["checkpoint"] == folders["old"]
    assert found.ledger.residual.place == "below"  # with the old tensors put in, rounding is left
    row, position = first.token
    moved = np.abs(trainer.score(run["prompt_ids"], run["response_ids"]).logp[row] - run["rollout_logp"][row])
    assert moved[position] > 3 * np.median(moved)  # the token behind a row of the ledger shows the cause
    assert found.as_dict()["ledger"]["rows"][0]["token"] == [row, position]
    rung = {rung.name: rung for rung in found.ladder}["weights"]
    assert (rung.status, "bit for bit" in rung.why) == ("failed", True)
    without = sp.diagnose(sp.diagnose(run, trainer=trainer).run, weights=seen)
    assert [f.cause for f in without.findings] == [cause]  # from the comparison alone, without a model


def test_equal_tensors_clear_the_weights(folders: dict[str, str]):
    run, trainer = scored(folders, sp.engine(f"hf:{folders['now']}", dtype="float32"))
    noise = np.random.default_rng(0).normal(0, 0.2, len(run["rollout_logp"].values))
    run = run.with_columns(rollout_logp=run["rollout_logp"].with_values(run["rollout_logp"].values - np.abs(noise)))
    seen, causes = weights.compare(folders["now"], folders["now"]), {"stale_weights", "partial_sync"}
    unseen, found = (sp.diagnose(run, trainer=trainer, weights=w) for w in (None, seen))
    assert causes <= {u.name for u in unseen.unchecked}
    assert not causes & {u.name for u in found.unchecked}
    rung = {rung.name: rung for rung in found.ladder}["weights"]
    assert (rung.status, rung.why) == ("passed", seen.sentence.rstrip("."))


def test_the_layer_where_they_part_proves_a_kernel(folders: dict[str, str], tmp_path: Path):
    rollout = sp.engine(f"hf:{folders['now']}", dtype="float32")
    rollout.model.model.layers[1].self_attn.scaling *= 1.3
    run, trainer = scored(folders, rollout)
    seen = compare(trainer, rollout, ROWS, ask=Ask(nats=False, repeat=False))
    assert seen.first == "layers.1.attention"
    found = sp.diagnose(run, trainer=trainer, layers=seen)
    first = found.findings[0]
    assert (found.verdict, first.cause, first.proof) == ("different", "kernel", "structural")
    assert first.parameters["first"] == "layers.1.attention"
    sp.write(found.run, tmp_path / "run")
    again = sp.diagnose(sp.read(tmp_path / "run"))
    assert again.findings[0].cause == "kernel"  # the run keeps what was seen
    assert again.as_dict()["layers"]["first"] == "layers.1.attention"


def test_a_kernel_is_not_named_where_the_gap_is_rounding(folders: dict[str, str]):
    trainer = sp.engine(f"hf:{folders['now']}", dtype="float32")
    run = trainer.generate(PROMPTS, SAMPLING)
    rollout = sp.engine(f"hf:{folders['now']}", dtype="float32")
    rollout.model.model.layers[1].self_attn.scaling *= 1.3
    seen = compare(trainer, rollout, ROWS, ask=Ask(nats=False, repeat=False))
    found = sp.diagnose(run, trainer=trainer, layers=seen)
    assert (found.verdict, found.findings) in (("numerics", ()), ("same", ()))


def test_the_command_takes_what_the_commands_print(folders: dict[str, str], tmp_path: Path, capsys: Any):
    run, trainer = scored(folders, sp.engine(f"hf:{folders['mixed']}", dtype="float32"))
    sp.write(sp.diagnose(run, trainer=trainer).run, tmp_path / "run")
    assert status(["weights", folders["now"], folders["mixed"], "--checkpoint", folders["old"], "--json"]) == 1
    (tmp_path / "weights.json").write_text(capsys.readouterr().out)
    assert status(["diagnose", str(tmp_path / "run"), "--weights", str(tmp_path / "weights.json"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["cause"] == "partial_sync"
    (tmp_path / "other.json").write_text('{"schema": 1}')
    assert status(["diagnose", str(tmp_path / "run"), "--layers", str(tmp_path / "other.json")]) == 2
    assert "no comparison of layers" in capsys.readouterr().err
    assert status(["diagnose", str(tmp_path / "run"), "--layers", str(tmp_path / "none.json")]) == 2


TENSOR = {"name": "model.norm.weight", "status": "old", "side": "B", "other": "step-0"}
WEIGHTS = {"a": "now", "b": "engine", "same": False, "sentence": "The weights differ.", "tensors": [TENSOR]}
NUMBERS = dict.fromkeys(("relative", "step", "trainer", "rollout", "floor", "ratio"), 0.5)
TAP: dict[str, Any] = {"tap": "embedding", **NUMBERS, "ratio": "inf", "beyond": True, "positions": [0.1, None]}
LAYERS = {"verdict": "different", "sentence": "Apart.", "first": "embedding", "longest": 8, "taps": [TAP]}


@pytest.mark.parametrize(
    "wrong",
    [
        *({}, [], "text", {"tensors": {}}, {"tensors": [1]}, {"tensors": [{}]}),
        *({**WEIGHTS, "tensors": []}, {**WEIGHTS, "same": "yes"}, {**WEIGHTS, "sentence": None}),
        *({**WEIGHTS, "tensors": [{**TENSOR, **wrong}]} for wrong in ({"name": 3}, {"side": "C"}, {"other": {}})),
        {**WEIGHTS, "tensors": [{"name": "model.norm.weight", "status": "old"}]},
    ],
)
def test_what_is_no_comparison_of_weights_is_refused(wrong: Any):
    run = sp.Run.from_lists(rollout_logp=[[-1.0]], trainer_logp=[[-1.0]])
    assert sp.diagnose(run, weights=WEIGHTS).run.info["weights"] == WEIGHTS
    with pytest.raises(InputError, match="This is no comparison of weights"):
        sp.diagnose(run, weights=wrong)
    with pytest.raises(InputError, match=r"info\['weights'\] of the run is no comparison"):
        sp.diagnose(replace(run, info={"weights": wrong}))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"taps": [{}]}, {**LAYERS, "taps": []}, {**LAYERS, "verdict": "other"}, {**LAYERS, "longest": -1}),
        *({**LAYERS, "first": "layers.0.q"}, {**LAYERS, "first": ""}, {**LAYERS, "first": 7}),
        {**LAYERS, "taps": [TAP, {**TAP, "positions": [0.1]}]},
        *({**LAYERS, "taps": [{**TAP, "ratio": wrong}]} for wrong in ("large", float("nan"), 10**400, [])),
        {**LAYERS, "taps": [{key: value for key, value in TAP.items() if key != "ratio"}]},
    ],
)
def test_what_is_no_comparison_of_layers_is_refused(wrong: Any):
    run = sp.Run.from_lists(rollout_logp=[[-1.0]], trainer_logp=[[-1.0]])
    assert sp.diagnose(run, layers=LAYERS).run.info["layers"] == LAYERS
    with pytest.raises(InputError, match="This is no comparison of layers"):
        sp.diagnose(run, layers=wrong)


def test_what_the_tokens_do_not_show_is_still_to_be_mended():
    run = sp.Run.from_lists(rollout_logp=[[-1.0, -2.0]], trainer_logp=[[-1.0, -2.00001]])
    changed = {**WEIGHTS, "tensors": [{**TENSOR, "status": "differs"}]}
    found = sp.diagnose(run, weights=changed, layers=LAYERS)
    assert (found.verdict, sp.diagnose(run).next[:15]) == ("same", "Nothing to mend")
    assert found.next.startswith("The weights differ. Apart. These tokens do not show it")


@pytest.mark.parametrize("text", ["", "null", "[" * 100_000, '{"tensors": [{}]}'])
def test_a_file_that_holds_no_comparison_is_refused_in_a_sentence(text: str, tmp_path: Path, capsys: Any):
    sp.write(sp.Run.from_lists(rollout_logp=[[-1.0]], trainer_logp=[[-1.0]]), tmp_path / "run")
    (tmp_path / "file").write_text(text)
    assert status(["diagnose", str(tmp_path / "run"), "--weights", str(tmp_path / "file")]) == 2
    assert "should not" not in (told := capsys.readouterr().err)
    assert "--json" in told
