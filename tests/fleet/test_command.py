"""The switches of `measure` and `correct` that choose, spread, skip and resume."""

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
    assert left.value.code == 0, captured.err
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


@pytest.mark.parametrize("command", ["measure", "correct"])
def test_bad_files_are_named_and_counted(folder: Path, command: str, capsys: pytest.CaptureFixture[str]):
    spoil(folder / "part-00000002-000000.parquet")
    assert "part-00000002-000000.parquet is truncated or damaged" in refusal(capsys, command, folder)
    found = value(capsys, command, folder, "--skip-bad")
    assert ["part-00000002-000000.parquet" in sentence for sentence in found["skipped"]] == [True]
    assert found["counts"]["tokens"] == sum(part(step).tokens for step in (0, 1, 3))


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
