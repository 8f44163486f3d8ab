"""The path triangle: arithmetic against a plain loop, and a fault put into one path of a toy."""

import json
import re

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.cli.main import status
from samepolicy.engines.base import Engine, engine
from samepolicy.engines.toy import Toy
from samepolicy.paths import ROUNDING, compare, paths, ways
from samepolicy.records.run import Run


@pytest.fixture
def prompts() -> Ragged:
    toy = engine("toy:")
    return Ragged.from_lists([toy.encode(text) for text in ("one", "three four", "five")])


def test_the_matrix_is_that_of_a_plain_loop():
    rng = np.random.default_rng(0)
    columns = {f"rollout {i}": -rng.exponential(1.0, 50) for i in range(4)}
    columns["rollout 2"][:7] = np.nan
    found = compare(columns, dtypes={"rollout": "float32"}, run=Run())
    for i, first in enumerate(columns.values()):
        for j, second in enumerate(columns.values()):
            differences = [abs(a - b) for a, b in zip(first, second, strict=True) if np.isfinite(a - b)]
            assert found.tokens[i, j] == len(differences)
            assert found.mean_abs[i, j] == pytest.approx(np.mean(differences))
            assert found.max_abs[i, j] == pytest.approx(max(differences))


def test_a_sound_engine_has_no_break(prompts: Ragged):
    toy = engine("toy:", dtype="bfloat16")
    found = paths(rollout=toy, trainer=toy, prompts=prompts, max_tokens=8)
    assert found.breaks == {}
    assert found.mean_abs[0, 1] > 0
    assert set(found.floor) == {"rollout", "trainer"}
    assert json.loads(json.dumps(found.as_dict()))["paths"] == list(found.names)


def test_the_first_path_that_breaks_is_named(prompts: Ragged):
    class Chunked(Toy):
        def ways(self):
            wrong = engine("toy:", hide_prompt=True)
            return {"good": lambda p, r: self.score(p, r).logp, "chunked": lambda p, r: wrong.score(p, r).logp}

    sound = engine("toy:")
    found = paths(rollout=Chunked(sound.options), trainer=sound, prompts=prompts, max_tokens=8)
    assert list(found.breaks) == ["rollout"]
    assert found.breaks["rollout"].path == "rollout chunked"
    assert "rollout chunked breaks" in str(found)
    assert found.floor["rollout"] < 1e-5


def test_a_path_without_a_number_breaks():
    columns = {"trainer prefill": np.array([-1.0]), "trainer packed": np.array([np.nan])}
    assert compare(columns, dtypes={"trainer": "float32"}, run=Run()).breaks["trainer"].path == "trainer packed"


def test_an_engine_that_cannot_score_has_its_decode_only(prompts: Ragged):
    class Mute(Toy):
        capabilities = Toy.capabilities.__class__(generate=True, score=False)

    sound: Engine = engine("toy:")
    mute = Mute(sound.options)
    assert ways(mute) == {}
    assert paths(rollout=mute, trainer=sound, prompts=prompts, max_tokens=4).names[:2] == (
        "rollout decode",
        "trainer prefill",
    )


def test_the_command_prints_the_matrix(capsys: pytest.CaptureFixture[str]):
    assert status(["paths", "--rollout", "toy:", "--trainer", "toy:", "--max-tokens", "4"]) == 0
    printed = capsys.readouterr().out
    assert "1 rollout decode" in printed
    assert re.search(r"trainer: all paths hold, no two more than \S+ nats apart on average", printed)


def test_a_break_is_status_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ROUNDING, "bfloat16", 1e-9)
    sides = ["--rollout", "toy:", "--trainer", "toy:", "--dtype", "bfloat16"]
    assert status(["paths", *sides, "--max-tokens", "4"]) == 1
    assert "rollout: rollout prefill breaks" in capsys.readouterr().out


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]):
    assert status(["paths", "--rollout", "toy:", "--trainer", "toy:", "--max-tokens", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["breaks"] == {}


def test_the_command_needs_an_engine():
    assert status(["paths", "--rollout", "toy:"]) == 2
