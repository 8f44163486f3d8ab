"""`samepolicy check`, on the toy engine: verdicts, what is printed, written and refused."""

from pathlib import Path

import pytest

import samepolicy as sp
from samepolicy.engines.toy import Toy
from samepolicy.errors import EngineError
from tests.cli.conftest import Call

BF16 = ("--rollout-dtype", "bfloat16", "--trainer-dtype", "bfloat16")
SHORT = ("--max-tokens", 8)


@pytest.mark.parametrize(
    ("switches", "verdict", "code"),
    [
        ((), "same", 0),
        (BF16, "numerics", 0),
        (("--dtype", "bfloat16"), "numerics", 0),
        ((*BF16, "--trainer-temperature", 0.7), "different", 1),
        ((*BF16, "--trainer-shift", 1), "different", 1),
        ((*BF16, "--trainer-hide-prompt"), "different", 1),
        ((*BF16, "--rollout-stale=0.2"), "different", 1),
        ((*BF16, "--temperature", 0.7, "--logprobs", "raw", "--trainer-extra-bos", 2), "different", 1),
    ],
)
def test_every_verdict_has_its_status(call: Call, short: Path, switches: tuple, verdict: str, code: int):
    done = call("check", "toy:", "--prompts", short, *SHORT, *switches, "--json")
    assert (done.value["verdict"], done.code) == (verdict, code)


def test_one_prompt_is_inconclusive(call: Call, tmp_path: Path):
    (tmp_path / "one.txt").write_text("one\n")
    done = call("check", "toy:", "--prompts", tmp_path / "one.txt", *SHORT, *BF16)
    assert done.code == 3
    assert done.out.startswith("Verdict: inconclusive\n")
    assert "Next: Give two prompts or more" in done.out


def test_json_is_exactly_what_the_library_returns(call: Call, short: Path):
    toy = sp.engine("toy:", dtype="bfloat16")
    found = sp.check(
        rollout=toy,
        trainer=toy,
        prompts=short.read_text().splitlines(),
        sampling=sp.Sampling(max_tokens=8, temperature=0.8, top_p=0.9, seed=5),
        samples=2,
    )
    sampling = ("--temperature", 0.8, "--top-p", 0.9, "--seed", 5, "--samples", 2)
    done = call("check", "toy:", "--prompts", short, *SHORT, *BF16, *sampling, "--json")
    assert done.value == found.as_dict()
    assert done.err == ""


def test_the_shape_of_json(call: Call, short: Path):
    value = call("check", "toy:", "--prompts", short, *SHORT, "--json").value
    assert value["schema"] == 1
    assert value["counts"]["tokens"] == 96
    assert value["metrics"]["k3"]["mean"] == pytest.approx(0, abs=1e-9)
    assert [rung["name"] for rung in value["ladder"]][:3] == ["tokens", "template", "shift"]


def test_the_packaged_prompts_are_the_default(call: Call):
    assert call("check", "toy:", "--max-tokens", 2, "--json").value["counts"]["sequences"] == 16


def test_two_engines_may_be_named(call: Call, short: Path):
    done = call("check", "--rollout", "toy:", "--trainer", "toy:", "--trainer-seed", 1, "--prompts", short, *SHORT)
    assert done.code == 1


def test_out_holds_the_whole_run(call: Call, short: Path, tmp_path: Path):
    done = call("check", "toy:", "--prompts", short, *SHORT, *BF16, "--out", tmp_path / "new" / "run")
    assert done.code == 0
    run = sp.read(tmp_path / "new" / "run")
    assert (len(run), run.rollout.dtype, run.trainer.dtype) == (12, "bfloat16", "bfloat16")
    assert {"trainer_logp", "rollout_reference_logp", "trainer_rounded_logp"} <= set(run.columns)
    assert sorted(f.name for f in (tmp_path / "new" / "run").iterdir()) == ["part-any-000000.parquet", "run.json"]


def test_a_trainer_that_fails_loses_no_rollout(
    call: Call, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fails(*_: object, **__: object) -> None:
        raise EngineError("The trainer ran out of memory; use shorter responses.")

    monkeypatch.setattr(Toy, "score", fails)
    done = call("check", "toy:", "--prompts", short, *SHORT, "--out", tmp_path / "run")
    kept, error = done.err.splitlines()
    assert (done.code, done.out) == (2, "")
    assert kept.startswith(f"The rollouts are kept in {tmp_path / 'run'}; ")
    assert error == "Error: The trainer ran out of memory; use shorter responses."
    run = sp.read(tmp_path / "run")
    assert (len(run), "rollout_logp" in run, "trainer_logp" in run) == (12, True, False)


def test_a_folder_in_use_is_refused_before_any_work(call: Call, recorded: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    before = sorted(recorded.iterdir())
    assert "is not empty" in call("check", "toy:no such file", "--out", recorded).refusal
    assert sorted(recorded.iterdir()) == before
    assert "is a file" in call("check", "toy:no such file", "--out", tmp_path / "file").refusal
    assert "is a file" in call("check", "toy:no such file", "--out", tmp_path / "file" / "run").refusal


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give a MODEL, or both --rollout and --trainer"),
        (("--rollout", "toy:"), "The trainer has no engine"),
        (("nobody:some/model",), "There is no 'nobody' engine; the kinds are"),
        (("--rollout", "some/model", "--trainer", "toy:"), "has no kind"),
        (("toy:", "--rollout", "vlm"), "The kinds are hf, server, toy, vllm"),
        (("toy:", "--no-such-switch"), "No such option: --no-such-switch"),
        (("toy:", "--trainer-no-such-switch", 1), "No such option: --trainer-no-such-switch"),
        (("toy:", "--trainer-shift", "far"), "--trainer-shift needs a value of type int, but it is 'far'"),
        (("toy:", "--trainer-shift"), "--trainer-shift needs a value"),
        (("toy:", "--trainer-hide-prompt=yes"), "--trainer-hide-prompt takes no value"),
        (("toy:", "--device", "cpu"), "The toy engine has no option device"),
        (("toy:", "--dtype", "int3"), "dtype 'int3' is not known"),
        (("toy:", "--max-tokens", 0), "max_tokens must be 1 or more"),
        (("toy:", "--max-tokens", "many"), "Invalid value for '--max-tokens'"),
        (("toy:", "--temperature", -1), "temperature must be 0 (greedy) or lie in"),
        (("toy:", "--trainer-temperature", -1), "temperature must be 0 (greedy) or lie in"),
        (("toy:", "--temperature", "inf"), "temperature must be 0 (greedy) or lie in"),
        (("toy:", "--temperature", "1e-300"), "temperature must be 0 (greedy) or lie in"),
        (("toy:", "--repetition-penalty", "inf"), "repetition_penalty must lie in (0, inf)"),
        (("toy:", "--seed", -1), "seed must be 0 or more"),
        (("toy:", "--logprobs", "cooked"), "Invalid value for '--logprobs'"),
        (("toy:", "--samples", 0, "--max-tokens", 2), "samples must be a whole number, 1 or more"),
        (("toy:", "another"), "unexpected extra argument"),
        (("toy:", "--prompts", "nowhere.txt"), "There is no file nowhere.txt"),
    ],
)
def test_a_wrong_call_is_one_sentence(call: Call, arguments: tuple, words: str):
    assert words in call("check", *arguments).refusal
