"""What a diagnosis refuses before it searches, as a program meets it that checks no types."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.errors import InputError

TOY = sp.engine("toy:", dtype="bfloat16")
CALLS = {
    "None": "A diagnosis is of a Run, and this is NoneType",
    "'run'": "A diagnosis is of a Run, and this is str",
    "run, trainer='toy:'": "An engine is wanted as the trainer, and this is str",
    "run, trainer=run": "An engine is wanted as the trainer, and this is Run",
    "run, trainer=[toy]": "An engine is wanted as the trainer, and this is list",
    "run, trainer=type(toy)": "An engine is wanted as the trainer, and this is a class",
    "run, rollout=5": "An engine is wanted as the rollout, and this is int",
    "run, trainer=toy, checkpoints='stale=0.05'": "checkpoints is a list of folders",
    "run, trainer=toy, checkpoints=pathlib.Path('old')": "checkpoints is a list of folders",
    "run, trainer=toy, checkpoints=[5]": "checkpoints is a list of folders",
    "run, trainer=toy, checkpoints=5": "checkpoints is a list of folders",
}
PROGRAM = """
import pathlib
import samepolicy as sp
toy = sp.engine("toy:")
run = sp.Run.from_lists(rollout_logp=[[-1.0, -0.5]], trainer_logp=[[-1.0, -0.6]])
for call in {calls!r}:
    try:
        eval(f"sp.diagnose({{call}})")
    except sp.errors.InputError as error:
        print(error)
"""


def test_arguments_of_another_kind():
    program = PROGRAM.format(calls=[*CALLS])
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    for line, sentence in zip(told.splitlines(), CALLS.values(), strict=True):
        assert line.startswith(sentence)


def test_one_bad_checkpoint_does_not_hide_a_good_one():
    prompts = sp.Ragged.from_lists([TOY.encode(text) for text in ("a b", "c", "d e f", "g h")])
    old = sp.engine("toy:", dtype="bfloat16", stale=0.06)
    run = old.generate(prompts, sp.Sampling(max_tokens=16, seed=1))
    with pytest.raises(InputError, match="these are 'bogus'"):
        sp.diagnose(run, trainer=TOY, checkpoints=["stale=0.06", "bogus"])
    found = sp.diagnose(run, trainer=TOY, checkpoints=["stale=0.06", "stale=0.06"])
    assert found.findings[0].parameters == {"checkpoint": "stale=0.06", "versions_behind": 1}
    assert sp.diagnose(run, trainer=TOY, checkpoints=None).verdict == "different"


def test_a_trainer_that_declares_nothing_is_the_one_that_is_given():
    prompts = sp.Ragged.from_lists([TOY.encode(text) for text in ("a b", "c", "d e f", "g h", "i", "j k")])
    run = TOY.generate(prompts, sp.Sampling(max_tokens=16, seed=1))
    logp = sp.engine("toy:", dtype="bfloat16", temperature=0.7).score(run["prompt_ids"], run["response_ids"]).logp
    found = sp.diagnose(run.with_columns(trainer_logp=logp), trainer=TOY)
    assert [finding.cause for finding in found.findings] == ["temperature"]
    assert found.run.trainer.dtype == "bfloat16"
    assert next(rung for rung in found.ladder if rung.name == "tokens").status != "passed"


def test_the_model_of_another_run_places_no_gap():
    prompts = sp.Ragged.from_lists([TOY.encode(text) for text in ("a b", "c", "d e f", "g h", "i", "j k")])
    run = TOY.generate(prompts, sp.Sampling(max_tokens=16, seed=1))
    logp = TOY.score(run["prompt_ids"], run["response_ids"]).logp
    run = replace(run.with_columns(trainer_logp=logp), trainer=TOY.describe(sp.Sampling()))
    assert sp.diagnose(run, trainer=TOY).verdict in ("same", "numerics")
    jitter = np.random.default_rng(0).normal(0, 0.02, len(logp.values)).astype(np.float32)
    rounded = run.with_columns(trainer_logp=logp.with_values(np.minimum(logp.values + jitter, 0)))
    found = sp.diagnose(rounded, trainer=sp.engine("toy:", dtype="bfloat16", seed=3))
    assert found.verdict == "inconclusive"
    assert "from each other" in found.sentence
    assert "the very model" in found.next
    assert any("has other weights" in warning for warning in found.warnings)
    assert not sp.diagnose(rounded, trainer=TOY).warnings


def test_a_gap_that_nothing_closes_says_what_was_tried():
    prompts = sp.Ragged.from_lists([TOY.encode(text) for text in ("a b", "c", "d e f", "g h", "i", "j k")])
    run = TOY.generate(prompts, sp.Sampling(max_tokens=16, seed=1))
    odd = np.random.default_rng(0).normal(0, 1, len(run["rollout_logp"].values)).astype(np.float32)
    logp = TOY.score(run["prompt_ids"], run["response_ids"]).logp
    run = run.with_columns(trainer_logp=logp.with_values(np.minimum(logp.values + odd, 0)))
    found = sp.diagnose(replace(run, trainer=TOY.describe(sp.Sampling())), trainer=TOY)
    assert (found.verdict, found.findings) == ("different", ())
    assert {"temperature", "penalty", "template"} <= {*found.tried} | {cause.name for cause in found.unchecked}
    assert "temperature" in found.tried
    (positions,) = (rung for rung in found.ladder if rung.name == "positions")
    assert positions.status == "not checked"
    assert positions.why.endswith("padding or rope does not close the gap")
    assert found.as_dict()["tried"] == list(found.tried)
    assert "-" not in found.sentence.partition(" would explain ")[2][:2]
