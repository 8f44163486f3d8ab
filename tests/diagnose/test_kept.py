"""Names that were found with a model are kept in the run, and count for that very run alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.cli.main import status
from samepolicy.diagnose.kept import keep, kept
from samepolicy.diagnose.ledger import Ledger
from samepolicy.diagnose.likely import add_likely
from samepolicy.diagnose.naming import Named
from samepolicy.errors import InputError

TOY = sp.engine("toy:", dtype="bfloat16")
PROMPTS = sp.Ragged.from_lists([TOY.encode(text) for text in ("a b", "c", "d e f", "g h", "i j", "k l m", "n", "o p")])
SAMPLING = sp.Sampling(max_tokens=24, seed=3)


@pytest.fixture(scope="module")
def cooled() -> sp.Diagnosis:
    run = sp.engine("toy:", dtype="bfloat16", temperature=0.7).generate(PROMPTS, SAMPLING)
    found = sp.diagnose(run, trainer=TOY)
    assert [finding.cause for finding in found.findings] == ["temperature"]
    return found


@pytest.fixture(scope="module")
def noisy() -> sp.Diagnosis:
    run = TOY.generate(PROMPTS, SAMPLING)
    noise = np.random.default_rng(0).normal(0, 0.5, len(run["rollout_logp"].values))
    logp = run["rollout_logp"].with_values(np.minimum(run["rollout_logp"].values + noise, 0))
    found = sp.diagnose(run.with_columns(rollout_logp=logp), trainer=TOY)
    assert (found.findings, bool(found.tried), found.verdict) == ((), True, "different")
    return found


@pytest.mark.parametrize("which", ["cooled", "noisy"])
def test_a_run_that_was_diagnosed_says_all_of_it_again(which: str, request: pytest.FixtureRequest, tmp_path: Path):
    found = request.getfixturevalue(which)
    sp.write(found.run, tmp_path / "run")
    again = sp.diagnose(sp.read(tmp_path / "run"))
    assert (found.kept, again.kept) == (False, True)
    assert again.as_dict() == found.as_dict() | {"kept": True}
    assert again.findings == found.findings


def test_a_report_of_it_shows_the_cause_without_a_model(cooled: sp.Diagnosis, tmp_path: Path, capsys):
    sp.write(cooled.run, tmp_path / "run")
    assert status(["report", str(tmp_path / "run"), "-o", str(tmp_path / "report.html")]) == 1
    assert "temperature (temperature 0." in " ".join(capsys.readouterr().out.split())
    assert "kept in the run" in (tmp_path / "report.html").read_text(encoding="utf-8")


CHANGES = {
    "rows": lambda run: run.select(np.arange(len(run)) < 6),
    "values": lambda run: run.with_columns(
        rollout_logp=run["rollout_logp"].with_values(run["rollout_logp"].values - 0.01)
    ),
    "a declaration": lambda run: replace(run, rollout=replace(run.rollout, dtype="float16")),
    "info": lambda run: replace(run, info={**run.info, "note": "moved"}),
    "the names": lambda run: replace(run, info={**run.info, "named": {**run.info["named"], "closest": "x"}}),
    "no names": lambda run: replace(run, info={**run.info, "named": {"of": "x"}}),
    "no mapping": lambda run: replace(run, info={**run.info, "named": 7}),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_names_of_another_run_do_not_count_and_are_said(changed: str, cooled: sp.Diagnosis):
    run = CHANGES[changed](cooled.run)
    assert kept(run) is None
    again = sp.diagnose(run)
    assert (again.kept, again.findings) == (False, ())
    assert any("named in other responses" in warning for warning in again.warnings)
    assert not any("named in other responses" in warning for warning in cooled.warnings)


def test_what_no_name_rests_on_may_be_added(cooled: sp.Diagnosis):
    listed = add_likely(cooled.run, rollout=TOY, trainer=TOY, top=2)
    listed = replace(listed, info={**listed.info, "pieces": {"1": "6f6e65"}})
    assert sp.diagnose(listed.with_columns(mine=np.zeros(len(listed)))).findings == cooled.findings


def test_a_table_of_text_keeps_them_though_its_numbers_are_wider(cooled: sp.Diagnosis, tmp_path: Path):
    sp.write(cooled.run, tmp_path / "run")
    assert status(["export", str(tmp_path / "run"), str(tmp_path / "run.jsonl"), "--to", "jsonl"]) == 0
    again = sp.read(tmp_path / "run.jsonl")
    assert again["rollout_logp"].values.dtype != cooled.run["rollout_logp"].values.dtype
    assert sp.diagnose(again).findings == cooled.findings


def test_names_that_joining_loses_are_missed(cooled: sp.Diagnosis, noisy: sp.Diagnosis):
    joined = sp.diagnose(sp.Run.concat([cooled.run, noisy.run]))
    assert (joined.kept, joined.findings) == (False, ())
    assert any("named in other responses" in warning for warning in joined.warnings)


def test_healthy_runs_are_joined_without_a_word():
    healthy = [sp.diagnose(TOY.generate(PROMPTS, replace(SAMPLING, seed=seed)), trainer=TOY) for seed in (1, 2)]
    joined = sp.diagnose(sp.Run.concat([found.run for found in healthy]))
    assert (joined.verdict, joined.warnings) == (healthy[0].verdict, ())


def test_a_report_warns_in_all_of_its_views(cooled: sp.Diagnosis, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sp.write(cooled.run.select([0, 1, 2]), tmp_path / "run")
    for more in ([], ["--markdown", "-"]):
        assert status(["report", str(tmp_path / "run"), *more]) in (1, 3)
        assert "named in other responses" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("keys", [{2: 0, 10: 0}, {1: 2, "b": 3}])
def test_keys_of_info_that_become_text_in_a_file(keys: dict[Any, int], cooled: sp.Diagnosis, tmp_path: Path):
    found = sp.diagnose(replace(cooled.run, info={**cooled.run.info, "a": keys}), trainer=TOY)
    sp.write(found.run, tmp_path / "run")
    assert sp.diagnose(sp.read(tmp_path / "run")).findings == found.findings == cooled.findings


def test_info_that_no_file_holds_costs_no_diagnosis(cooled: sp.Diagnosis):
    found = sp.diagnose(replace(cooled.run, info={**cooled.run.info, "a": {(1, 2): 3}}), trainer=TOY)
    assert found.findings == cooled.findings
    assert (sp.diagnose(found.run).kept, sp.diagnose(found.run).warnings) == (False, ())


def test_a_model_that_found_nothing_is_not_asked_for_again(tmp_path: Path):
    run = sp.engine("toy:", dtype="bfloat16", temperature=0.5).generate(PROMPTS.take(np.array([0])), SAMPLING)
    found = sp.diagnose(run, trainer=TOY)
    sp.write(found.run, tmp_path / "run")
    assert sp.diagnose(sp.read(tmp_path / "run")).unchecked == found.unchecked


def test_checkpoints_need_a_model(cooled: sp.Diagnosis):
    with pytest.raises(InputError, match="give it, too"):
        sp.diagnose(cooled.run, checkpoints=["stale=0.1"])


def test_a_model_looks_again_and_forgets_what_no_longer_is(cooled: sp.Diagnosis):
    again = sp.diagnose(cooled.run, trainer=TOY)
    assert (again.kept, again.findings) == (False, cooled.findings)
    run = cooled.run
    mended = run.with_columns(rollout_logp=run["trainer_logp"].with_values(run["trainer_logp"].values.copy()))
    mended = sp.diagnose(replace(mended.without("trainer_logp"), trainer=sp.Side()), trainer=TOY)
    assert mended.findings == sp.diagnose(mended.run).findings == ()


def test_numbers_that_one_prompt_cannot_give_are_kept_as_none(tmp_path: Path):
    run = sp.engine("toy:", dtype="bfloat16", temperature=0.5).generate(PROMPTS.take(np.array([0])), SAMPLING)
    named = Named(ledger=Ledger(total=0.5, rows=(), residual=sp.diagnose(run, trainer=TOY).gap))
    assert np.isnan(named.ledger.residual.low)
    sp.write(keep(run, named), tmp_path / "run")
    held = kept(sp.read(tmp_path / "run"))
    assert held is not None
    assert str(held) == str(named)
    endless = Named(ledger=Ledger(total=float("inf"), rows=(), residual=None))
    assert kept(keep(run, endless)) == endless
