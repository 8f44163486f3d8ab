"""What a diagnosis refuses before it searches, as a program meets it that checks no types."""

import subprocess
import sys

import pytest

import samepolicy as sp
from samepolicy.errors import InputError

TOY = sp.engine("toy:", dtype="bfloat16")
CALLS = {
    "None": "A diagnosis is of a Run, and this is NoneType",
    "'run'": "A diagnosis is of a Run, and this is str",
    "run, trainer='toy:'": "An engine is wanted, not its name",
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
