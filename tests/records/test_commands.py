"""`import`, `export`, `worst` and `prune` on the command line."""

import json
from pathlib import Path

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.records.formats import targets
from samepolicy.records.worst import worst
from tests.cli.conftest import Call, call  # noqa: F401
from tests.records.test_golden import GOLDEN
from tests.records.test_prune import make


def test_import_takes_a_map_a_format_and_skips_bad_files(call: Call, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "a.txt").write_text(
        '{"old_lp": [-1.0], "lp": [-2.0], "step": 2}\n{"old_lp": [-1], "lp": [-3], "step": 1}\n'
    )
    options = ("--map", "trainer_logp=old_lp", "--map", "rollout_logp=lp", "--format", "jsonl", "--json")
    done = call("import", tmp_path / "a.txt", tmp_path / "run", *options)
    assert (done.code, done.value["run"]["responses"], "skipped" in done.value) == (0, 2, False)
    assert sp.read(tmp_path / "run")["rollout_logp"].values.tolist() == [-3.0, -2.0]
    assert len(list((tmp_path / "run").glob("part-0000000[12]-*.parquet"))) == 2
    for bad in ("trainer_logp", "=x", "x="):
        assert "--map takes OURS=THEIRS" in call("import", tmp_path / "a.txt", tmp_path / "no", "--map", bad).refusal
    (tmp_path / "train_data_step1.jsonl").write_text((GOLDEN / "nemo_rl" / "train_data_step7.jsonl").read_text())
    (tmp_path / "train_data_step2.jsonl").write_text("{")
    assert "train_data_step2.jsonl" in call("import", tmp_path, tmp_path / "no").refusal
    done = call("import", tmp_path, tmp_path / "rest", "--skip-bad", "--json")
    assert (done.code, len(done.value["skipped"])) == (0, 1)
    assert done.err.startswith("Skipped (1): ")
    assert "train_data_step2.jsonl" in done.err
    assert len(sp.read(tmp_path / "rest")) == 3


def test_a_pickle_is_refused_without_the_flag(call: Call, tmp_path: Path) -> None:  # noqa: F811
    assert "--unsafe-pickle" in call("import", GOLDEN / "skyrl", tmp_path / "run").refusal
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("to", sorted(targets()))
def test_export_writes_what_import_reads(call: Call, tmp_path: Path, to: str) -> None:  # noqa: F811
    make(tmp_path / "run", range(1, 3))
    out = tmp_path / ("out" if to == "verl_npy" else f"out.{to}")
    done = call("export", tmp_path / "run", out, "--to", to, "--json")
    assert (done.code, done.value["responses"]) == (0, 12)
    assert done.value["bytes"] == sum(f.stat().st_size for f in ([out] if out.is_file() else out.iterdir()))
    assert len(sp.read(out)) == 12
    assert "there already" in call("export", tmp_path / "run", out, "--to", to).refusal.replace("exists al", "there al")
    assert (
        "cannot be exported to 'npz'; choose one of jsonl"
        in call("export", tmp_path / "run", "x", "--to", "npz").refusal
    )


def test_worst_prints_what_the_library_returns(call: Call, tmp_path: Path) -> None:  # noqa: F811
    make(tmp_path / "run", range(1, 4))
    run = sp.read(tmp_path / "run")
    value = call("worst", tmp_path / "run", "--by", "k3", "-n", 4, "--json").value
    assert value == json.loads(json.dumps(worst(run, by="k3", n=4).as_dict()))
    page = call("worst", tmp_path / "run", "--over", "response", "-n", 2).out
    assert "The worst 2 (of 18 responses, by logp_diff in nats)" in page
    one = call("worst", tmp_path / "run", "--steps", 2, "-n", 1, "--json").value["worst"][0]
    assert (one["step"], one["sequence"]) == (2, worst(run.select(run["step"] == 2), n=1).found[0].sequence)
    assert call("worst", f"file://{(tmp_path / 'run').resolve()}", "--by", "k3", "-n", 4, "--json").value == value
    assert "no metric 'nothing'" in call("worst", tmp_path / "run", "--by", "nothing").refusal
    bad = tmp_path / "run" / "part-00000002-000000.parquet"
    bad.write_bytes(bad.read_bytes()[:50])
    assert bad.name in call("worst", tmp_path / "run").refusal
    done = call("worst", tmp_path / "run", "--skip-bad", "--json")
    assert (len(done.value["skipped"]), bad.name in done.err) == (1, True)


def test_worst_shows_token_text(call: Call, tmp_path: Path) -> None:  # noqa: F811
    columns = {"rollout_logp": [[-1.0] * 3], "trainer_logp": [[-1.0, -2.0, np.nan]]}
    sp.write(sp.Run.from_lists(**columns, token_text=[["The", " cat\n", "!"]]), tmp_path / "run")
    page = call("worst", tmp_path / "run").out
    assert r"The[ cat\n]!" in page
    assert "1 tokens have a log-prob that is missing" in page


def test_prune_asks_before_it_does(call: Call, tmp_path: Path) -> None:  # noqa: F811
    make(tmp_path / "run")
    before = sp.read(tmp_path / "run")
    page = call("prune", tmp_path / "run", "--every", 3, "--worst", 1).out
    assert "Nothing is changed yet; --yes does it." in page
    assert "zstd" in page
    assert sp.read(tmp_path / "run") == before
    done = call("prune", tmp_path / "run", "--every", 3, "--worst", 1, "--yes", "--json")
    assert (done.value["done"], done.value["kept"], done.value["responses"]) == (True, 22, 42)
    assert len(sp.read(tmp_path / "run")) == 22
    assert "does not exist" in call("prune", tmp_path / "nowhere").refusal
