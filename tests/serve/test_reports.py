"""The report of a step: the same as `samepolicy report` writes, made once, and never of anything outside the folder."""

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

import samepolicy as sp
from samepolicy.records.store import write
from samepolicy.report import html
from samepolicy.serve.reports import EndedError, Reports
from samepolicy.serve.watch import Watch
from tests.report.runs import embedded_value, hostile, tokenizer_json
from tests.serve.conftest import record, running

pytestmark = pytest.mark.full


TEXTS = ("text", "prompt_text", "finish_reason", "group")


@pytest.fixture
def reports(folder: Path) -> Iterator[Reports]:
    watch = Watch(folder, title="run")
    made = Reports(watch, title="run")
    yield made
    made.close()


def shown(reports: Reports, step: int) -> dict:
    """The value inside a step's report."""
    import gzip

    while reports._watch.look():
        pass
    return embedded_value(gzip.decompress(reports.ask(step).result(60).content).decode())


def test_a_step_is_reported_as_recorded_once_until_it_changes(reports: Reports, folder: Path):
    record(folder, {1: 0.01, 2: 0.3})
    value = shown(reports, 2)
    run = sp.read(folder, steps=[2])
    assert value["counts"] == sp.diagnose(run).as_dict()["counts"]
    assert value["verdict"] == sp.diagnose(run).verdict
    assert value["report"]["title"] == "run · step 2"
    assert value["report"]["live"] == {"run": "/", "previous": "/step/2/previous", "next": "/step/2/next"}
    assert reports.ask(2).result() is reports.ask(2).result()
    assert reports.rendered == 1
    record(folder, {2: 0.01})
    assert shown(reports, 2)["metrics"]["k3"]["mean"] == sp.measure(sp.read(folder, steps=[2]))["k3"]["mean"]
    assert reports.rendered == 2


def test_many_who_ask_at_once_wait_for_one(reports: Reports, folder: Path, monkeypatch: pytest.MonkeyPatch):
    record(folder, {1: 0.01})
    while reports._watch.look():
        pass
    go = threading.Event()
    real = reports._page
    monkeypatch.setattr(reports, "_page", lambda *given: go.wait(30) and real(*given))
    waiting = [reports.ask(1) for _ in range(5)]
    go.set()
    assert len({id(one.result(60)) for one in waiting}) == 1
    assert reports.rendered == 1


def test_who_waits_is_let_go_at_the_end(reports: Reports, folder: Path, monkeypatch: pytest.MonkeyPatch):
    record(folder, {1: 0.01})
    while reports._watch.look():
        pass
    go = threading.Event()
    monkeypatch.setattr(reports, "_page", lambda *_: go.wait(30))
    waiting = reports.ask(1)
    reports.close()
    with pytest.raises(EndedError):
        waiting.result(5)
    go.set()


def test_a_run_cannot_name_a_file_to_be_read(reports: Reports, folder: Path, tmp_path: Path):
    (tmp_path / "model").mkdir()
    tokenizer_json(tmp_path / "model")
    side = sp.Side(model=str(tmp_path / "model"))
    logp = np.log([[0.5, 0.25]])
    write(sp.Run.from_lists(response_ids=[[0, 1]], rollout_logp=logp, trainer_logp=logp, rollout=side), folder, step=1)
    assert shown(reports, 1)["words"]["pieces"] == {}


def test_hostile_text_stays_text(folder: Path):
    run, _ = hostile()
    whole = {name: [t.encode("utf-8", "replace").decode() for t in run[name]] for name in TEXTS}  # what a file can hold
    write(run.with_columns(**whole), folder, step=1)
    with running(folder) as live, httpx.Client(base_url=live.url, timeout=60) as client:
        page = client.get("/step/1").text
        assert "window.hacked = 1</script>" not in page
        assert page.startswith("<!DOCTYPE html>")
        assert html.MARK in page
        live_page = client.get("/").text
        data = client.get("/data").json()
        assert "window.hacked" not in live_page
        assert data["state"]["sides"]["rollout"].startswith("</script>")  # text in JSON, which reaches text nodes only


def test_addresses_of_steps(folder: Path):
    record(folder, {3: 0.01, 8: 0.01})
    (folder / "part-00000009-000000.parquet").write_bytes(b"broken")
    with running(folder) as live, httpx.Client(base_url=live.url, timeout=60) as client:
        assert client.get("/step/4").text == "There is no step 4 in this run.\n"
        assert client.get("/step/4").status_code == 404
        damaged = client.get("/step/9")
        assert damaged.status_code == 404
        assert damaged.text.startswith("part-00000009-000000.parquet is truncated or damaged")
        assert str(folder) not in damaged.text
        assert "--skip-bad" not in damaged.text
        assert client.get("/step/3/next").headers["location"] == "/step/8"
        assert client.get("/step/3/previous").headers["location"] == "/"
        assert client.get("/step/8/sideways").status_code == 404
        first = client.get("/step/3")
        again = client.get("/step/3", headers={"if-none-match": first.headers["etag"]})
        assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
        plain = client.get("/step/3", headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.text == first.text
