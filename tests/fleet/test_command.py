"""The switches of `measure`, `correct`, `diagnose` and `report` that choose, spread, skip, sample and resume."""

import json
from pathlib import Path

import pytest

import samepolicy as sp
from samepolicy.cli.main import main
from tests.fleet.folders import part, write
from tests.records.test_reading import spoil


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "run", steps=4)


def value(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    """What a call prints as JSON."""
    with pytest.raises(SystemExit) as left:
        main([*map(str, arguments), "--json"])
    captured = capsys.readouterr()
    assert left.value.code in (0, 1, 3), captured.err
    return json.loads(captured.out)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence of a call that gave no result."""
    with pytest.raises(SystemExit) as left:
        main([*map(str, arguments)])
    captured = capsys.readouterr()
    assert (left.value.code, captured.out, captured.err.count("\n")) == (2, "", 1), captured.err
    return captured.err


def test_the_numbers_do_not_depend_on_how_the_work_is_spread(folder: Path, capsys: pytest.CaptureFixture[str]):
    plain = value(capsys, "measure", folder, "--by", "step")
    assert value(capsys, "measure", folder, "--by", "step", "--workers", 2) == plain
    assert plain["counts"]["tokens"] == sp.read(folder).tokens
    assert list(plain["groups"]) == ["0", "1", "2", "3"]
    assert value(capsys, "measure", folder.as_uri()) == value(capsys, "measure", folder)


def test_several_runs_are_merged(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path / "other", steps=1)
    found = value(capsys, "measure", folder, tmp_path / "other")
    assert found["counts"]["tokens"] == sp.read(folder).tokens + part(0).tokens


def test_choices(folder: Path, capsys: pytest.CaptureFixture[str]):
    switches = ("--steps", "1-2", "--steps", "0", "--samples", "1-4", "--finish-reason", "stop")
    chosen = {"steps": [0, 1, 2], "samples": [1, 2, 3, 4], "finish_reasons": ["stop"]}
    found = value(capsys, "measure", folder, *switches)
    assert found["counts"]["tokens"] == sp.read(folder, **chosen).tokens < sp.read(folder).tokens
    whatif = sp.whatif(sp.stream(folder, **chosen), ["tis"])
    assert value(capsys, "correct", folder, "--with", "tis", *switches) == json.loads(json.dumps(whatif.as_dict()))


@pytest.mark.parametrize("command", ["diagnose", "report"])
def test_a_verdict_of_chosen_responses(folder: Path, command: str, capsys: pytest.CaptureFixture[str]):
    switches = ("--steps", "1-2", "--samples", "1-4", "--finish-reason", "stop")
    run = sp.read(folder, steps=[1, 2], samples=[1, 2, 3, 4], finish_reasons=["stop"])
    found = value(capsys, command, folder, *switches)
    assert found["counts"]["tokens"] == run.tokens < sp.read(folder).tokens
    assert found["sentence"] == sp.diagnose(run).sentence
    assert "sample" not in found


@pytest.mark.parametrize("command", ["diagnose", "report"])
def test_a_verdict_of_a_sample(folder: Path, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = value(capsys, command, folder, "--sample", 5, "--workers", 2, "--steps", "0-2", "--resume", tmp_path / "k")
    run = sp.read(folder, steps=[0, 1, 2])
    assert found["sample"] == {"responses": 5, "of": 18, "seed": 0, "metrics": "all"}
    assert found["counts"]["tokens"] == run.tokens
    assert found["metrics"]["logp_diff"]["mean"] == pytest.approx(sp.measure(run)["logp_diff"]["mean"])
    plain = value(capsys, command, folder, "--steps", "0-2")
    assert found["metrics"].keys() == plain["metrics"].keys()
    for whole in (0, 18, 99):
        assert value(capsys, command, folder, "--steps", "0-2", "--sample", whole) == plain


@pytest.mark.parametrize("command", ["diagnose", "report"])
def test_a_run_that_is_too_large_is_sampled(
    folder: Path, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("samepolicy.fleet.sampled.ROOM", 1000)
    monkeypatch.setattr("samepolicy.fleet.sampled.MOST", 3)
    page = tmp_path / "page.html"
    with pytest.raises(SystemExit):
        main([command, str(folder), *(("-o", str(page)) if command == "report" else ())])
    out = " ".join(capsys.readouterr().out.split())
    assert "Sample: sampled 3 of 24 responses; metrics are of all" in out
    if command == "report":
        text = page.read_text("utf-8")
        assert "3 / 24" in text
        assert "Verdict, causes and floor are of the sample" in text


def test_a_sample_is_written_as_one(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    value(capsys, "diagnose", folder, "--sample", 4, "--out", tmp_path / "out")
    written = sp.read(tmp_path / "out")
    assert (len(written), written.info["drawn"]["of"]) == (4, 24)


def test_a_run_without_a_trainer_is_sampled_without_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for step in range(2):
        sp.write(part(step).without("trainer_logp"), tmp_path / "run", step=step)
    for command in ("diagnose", "report"):
        found = value(capsys, command, tmp_path / "run", "--sample", 3)
        assert (found["sample"]["metrics"], found["verdict"]) == ("sample", "inconclusive")


@pytest.mark.parametrize("command", ["measure", "correct", "diagnose", "report"])
def test_bad_files_are_named_and_counted(folder: Path, command: str, capsys: pytest.CaptureFixture[str]):
    spoil(folder / "part-00000002-000000.parquet")
    assert "part-00000002-000000.parquet is truncated or damaged" in refusal(capsys, command, folder)
    found = value(capsys, command, folder, "--skip-bad")
    assert ["part-00000002-000000.parquet" in sentence for sentence in found["skipped"]] == [True]
    assert found["counts"]["tokens"] == sum(part(step).tokens for step in (0, 1, 3))
    if command in ("diagnose", "report"):
        sampled = value(capsys, command, folder, "--skip-bad", "--sample", 4)
        assert len(sampled["skipped"]) == 1
        assert sampled["counts"] == found["counts"]


@pytest.mark.parametrize("word", ["x", "3-1", "-1", "1-", "1.5", "0-99999999999"])
def test_no_range(folder: Path, word: str, capsys: pytest.CaptureFixture[str]):
    assert "--steps" in refusal(capsys, "measure", folder, f"--steps={word}")


def test_resume_is_for_one_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert "several are given" in refusal(capsys, "measure", folder, folder, "--resume", tmp_path / "kept")
    assert value(capsys, "measure", folder, "--resume", tmp_path / "kept") == value(capsys, "measure", folder)
    assert not (tmp_path / "kept").exists()


def test_ray_that_is_not_installed_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    assert "pip install 'samepolicy[ray]'" in refusal(capsys, "measure", folder, "--on", "ray")
