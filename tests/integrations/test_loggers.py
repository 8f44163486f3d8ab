"""Each logger writes real local files with its real package, and they are read back."""

import json
import os
import resource
import sqlite3
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from samepolicy import Monitor, Side
from samepolicy.errors import InputError, ShapeError
from samepolicy.integrations.images import bars, heat_map
from samepolicy.integrations.loggers import Logger, all_loggers, logger
from samepolicy.integrations.loggers.base import entry_of
from samepolicy.monitor import Seen

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]  # the packages' words about their own plans
NAMES = ("jsonl", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")


def batch(seed=0):
    rng = np.random.default_rng(seed)
    rollout = -rng.exponential(1.0, (3, 5))
    trainer = np.minimum(rollout + 0.5 * rng.standard_normal((3, 5)), 0)
    return {"trainer": trainer, "rollout": rollout, "mask": np.arange(5) < np.array([[5], [2], [0]])}


def watched(made: Logger, steps=2):
    """A monitor with this logger over some steps; what it gave back."""
    monitor = Monitor(loggers=(made,), grid=None, rollout=Side(dtype="float32"), trainer=Side(dtype="float32"))
    with monitor:
        found = [monitor(step=step, **batch(step)) for step in range(1, steps + 1)]
    made.close()
    assert found[-1]["samepolicy/monitor/failed"] == 0
    assert monitor._writer.failed == 0, monitor._say.said
    return found


def wanted_counts(step=1):
    b = batch(step)
    return np.histogram((b["trainer"] - b["rollout"])[b["mask"]], bins=64)[0]


def test_every_logger_is_found():
    assert sorted(all_loggers()) == sorted(NAMES)


def test_jsonl(tmp_path):
    found = watched(logger("jsonl", folder=tmp_path / "log"))
    lines = [json.loads(line) for line in (tmp_path / "log" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    for line, metrics in zip(lines, found, strict=True):
        assert {n: v for n, v in line["metrics"].items() if v is not None} == {
            n: v for n, v in metrics.items() if np.isfinite(v)
        }
        assert set(line["metrics"]) == set(metrics)
    assert lines[0]["histograms"]["samepolicy/log_ratio"]["counts"] == wanted_counts().tolist()
    assert any(event.startswith("alarm: ") for event in lines[0]["events"])
    picture = tmp_path / "log" / lines[0]["images"]["samepolicy/heat_map"]
    assert size_of(picture) == heat_map(np.zeros((3, 5)), np.ones((3, 5), bool), title="").shape[1::-1]


def size_of(png: Path):
    """Width and height of a PNG file, from its header."""
    head = png.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


def test_two_writers_of_one_folder_are_kept_apart(tmp_path):
    first, second = (logger("jsonl", folder=tmp_path / "log") for _ in range(2))
    for made in (first, second):
        made(Seen(step=1, metrics={"k3": 0.5}))
    assert (tmp_path / "log-2" / "metrics.jsonl").is_file()
    first.close()
    second.close()


def test_a_full_disk_leaves_whole_lines_and_no_half_pictures(tmp_path, caplog):
    made = logger("jsonl", folder=tmp_path / "log", pictures=2)
    file, (_, most) = tmp_path / "log" / "metrics.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    with Monitor(loggers=(made,), calm=0) as monitor:
        monitor(step=1, **batch(1))
        monitor.flush()
        try:  # the system refuses what goes beyond this, in the middle of a write
            resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 100, most))
            monitor(step=3, **batch(3))
            monitor.flush()
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
            monitor(step=4, **batch(4))
            monitor.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        monitor(step=5, **batch(5))
        monitor.flush()
        assert monitor(step=7, trainer=None, rollout=None, mask=None)["samepolicy/monitor/failed"] == 2
    made.close()
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [1, 5, 7]
    assert sorted(path.suffix for path in file.parent.iterdir()) == [".jsonl", ".png", ".tmp"]
    assert [path.name for path in file.parent.glob("*.tmp")] == [".monitor.tmp"]


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = watched(logger("tensorboard", folder=tmp_path))
    read = EventAccumulator(str(tmp_path), size_guidance={"images": 0, "histograms": 0, "tensors": 0}).Reload()
    tags = read.Tags()
    assert set(tags["scalars"]) == set(found[0])
    assert [e.value for e in read.Scalars("samepolicy/k3/mean")] == pytest.approx(
        [f["samepolicy/k3/mean"] for f in found], rel=1e-6
    )
    bins = read.Histograms("samepolicy/log_ratio")[0].histogram_value
    assert sum(bins.bucket) == bins.num == wanted_counts().sum()
    d = (batch(1)["trainer"] - batch(1)["rollout"])[batch(1)["mask"]]
    assert (bins.min, bins.max, bins.sum) == pytest.approx((d.min(), d.max(), d.sum()))
    image = read.Images("samepolicy/heat_map")[0]
    assert image.encoded_image_string[:4] == b"\x89PNG"
    text = b"".join(e.tensor_proto.string_val[0] for e in read.Tensors("samepolicy/events/text_summary"))
    assert b"alarm: " in text


def test_mlflow(tmp_path):
    made = logger("mlflow", folder=tmp_path / "runs")
    found = watched(made)
    held = made._client.get_metric_history(made.run_id, "samepolicy/k3/mean")
    assert [(m.step, m.value) for m in held] == [(i + 1, f["samepolicy/k3/mean"]) for i, f in enumerate(found)]
    assert made._client.get_run(made.run_id).info.status == "FINISHED"
    files = [path.relative_to(tmp_path) for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    names = [str(file) for file in files]
    assert any("heat_map" in name and name.endswith(".png") for name in names)
    (numbers,) = [tmp_path / f for f in files if "log_ratio_step_1" in str(f)]
    assert json.loads(numbers.read_text())["counts"] == wanted_counts().tolist()
    (said,) = [tmp_path / f for f in files if "events_step_1" in str(f)]
    assert "alarm: " in said.read_text()


def test_wandb_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    made = logger("wandb", folder=tmp_path, mode="offline")
    found = watched(made)
    (file,) = tmp_path.rglob("*.wandb")
    records, end = [], time.monotonic() + 60
    while not any(r.WhichOneof("record_type") == "exit" for r in records) and time.monotonic() < end:
        records = list(wandb_records(file))  # wandb's own process may still write
    rows = [
        {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in r.history.item}
        for r in records
        if r.WhichOneof("record_type") == "history"
    ]
    assert [row["samepolicy/step"] for row in rows] == [1, 2]
    assert [row["samepolicy/k3/mean"] for row in rows] == pytest.approx([f["samepolicy/k3/mean"] for f in found])
    assert rows[0]["samepolicy/log_ratio_histogram/values"] == wanted_counts().tolist()
    assert rows[0]["samepolicy/heat_map/_type"] == "image-file"
    assert list(tmp_path.rglob("media/images/samepolicy/heat_map_*.png"))
    alerts = [r.alert.text for r in records if r.WhichOneof("record_type") == "alert"]
    assert any("alarm: " in text for text in alerts)


def wandb_records(file):
    """The records of an offline run: after 7 bytes, blocks of 32 KiB hold chunks of checksum, length, kind and bytes.

    A record is one chunk (kind 1), or a first, some middle and a last one (2, 3, 4).
    """
    from wandb.proto import wandb_internal_pb2

    data, at, held = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        held += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(held)
            held = b""
            yield record


def test_swanlab_offline(tmp_path):
    found = watched(logger("swanlab", folder=tmp_path, mode="offline"))
    held = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for name in ("samepolicy/k3/mean", "samepolicy/heat_map", "samepolicy/log_ratio", "samepolicy/events"):
        assert name.encode() in held, name
    assert list(tmp_path.rglob("*.png"))
    assert found


def test_trackio(tmp_path):
    code = (
        "from tests.integrations.test_loggers import logger, watched\n"
        "found = watched(logger('trackio', project='watched', name='run'))\n"
        "import json; print('FOUND', json.dumps([f['samepolicy/k3/mean'] for f in found]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "TRACKIO_DIR": str(tmp_path)},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    (file,) = tmp_path.glob("watched*.db")
    with sqlite3.connect(file) as held:
        rows = {step: json.loads(m) for step, m in held.execute("select step, metrics from metrics order by step")}
        alerts = [text for (text,) in held.execute("select text from alerts")]
    assert [rows[step]["samepolicy/k3/mean"] for step in (1, 2)] == pytest.approx(json.loads(line[6:]))
    assert rows[1]["samepolicy/log_ratio_histogram"]["values"] == wanted_counts().tolist()
    assert rows[1]["samepolicy/heat_map"]["_type"] == "trackio.image"
    assert list(tmp_path.rglob("*.png"))
    assert any("alarm: " in text for text in alerts)


class Raises(Logger):
    def log(self, entry):
        raise RuntimeError("the disk is elsewhere")


def test_a_logger_that_raises_is_counted_said_once_and_costs_no_other_its_step(tmp_path, caplog):
    good = logger("jsonl", folder=tmp_path / "log")
    with Monitor(loggers=(Raises(), good)) as monitor:
        for step in (1, 2, 3):
            monitor(step=step, **batch(step))
            monitor.flush()
        assert monitor(step=4, **batch(4))["samepolicy/monitor/failed"] == 3
    good.close()
    assert len((tmp_path / "log" / "metrics.jsonl").read_text().splitlines()) == 4
    assert len([r for r in caplog.records if "disk is elsewhere" in r.getMessage()]) == 1


def test_a_step_that_could_not_be_measured_is_logged_without_pictures(tmp_path):
    made = logger("jsonl", folder=tmp_path / "log")
    with Monitor(loggers=(made,)) as monitor:
        monitor(step=1, trainer=None, rollout=None, mask=None)
    made.close()
    (line,) = [json.loads(text) for text in (tmp_path / "log" / "metrics.jsonl").read_text().splitlines()]
    assert (line["metrics"]["samepolicy/monitor/skipped"], line["images"], line["histograms"]) == (1, {}, {})


def test_pictures_come_first_and_every_so_many_steps_and_with_events():
    drawn = []

    class Counts(Logger):
        def log(self, entry):
            drawn.append(bool(entry.images))

    made = Counts(pictures=3)
    for step in range(1, 8):
        made(Seen(step=step, metrics={}, batch=batch(), events=("alarm: x.",) if step == 5 else ()))
    assert drawn == [True, False, True, False, True, True, False]


def test_only_the_rest_is_logged_where_a_framework_logs_the_numbers():
    seen = Seen(step=1, metrics={"k3": 1.0}, batch=batch(), events=("alarm: x.",))
    entry = entry_of(seen, scalars=False)
    assert (dict(entry.scalars), entry.events) == ({}, ("alarm: x.",))
    assert entry.images


def test_packed_batches_have_histograms_and_no_heat_map():
    b = batch()
    packed = {n: v.reshape(-1) for n, v in b.items()} | {"offsets": np.array([0, 5, 10, 15])}
    entry = entry_of(Seen(step=1, metrics={}, batch=packed))
    assert not entry.images
    assert entry.histograms["samepolicy/log_ratio"].counts.sum() == b["mask"].sum()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [("aim", {}, "no logger 'aim'"), ("jsonl", {"dir": "x"}, "no option 'dir'")],
)
def test_a_wrong_call_is_a_sentence(name, options, words):
    with pytest.raises(InputError, match=words):
        logger(name, **options)


def test_the_heat_map_shows_values_gaps_and_what_is_no_number():
    values = np.array([[0.0, 0.5], [1.0, np.nan]])
    mask = np.array([[True, True], [True, True]])
    pixels = heat_map(values, mask, title="x")
    centre = [pixels[34 + 14 * i + 7, 34 + 14 * j + 7].tolist() for i in (0, 1) for j in (0, 1)]
    assert centre == [[237, 243, 250], [122, 146, 178], [8, 48, 107], [0, 0, 0]]
    gap = heat_map(values, np.array([[True, False], [True, True]]), title="x")
    assert gap[34 + 7, 34 + 14 + 7].tolist() == [205, 205, 205]
    assert heat_map(np.zeros((40, 100)), np.zeros((40, 100), bool), title="x").shape == (32 * 14 + 68, 64 * 14 + 68, 3)
    with pytest.raises(ShapeError, match="value and a mask"):
        heat_map(values, mask[:1], title="x")


def test_bars_grow_with_the_root_of_their_counts():
    pixels = bars(np.array([4.0, 1.0, 0.0]), np.arange(4.0), title="x")
    heights = [(pixels[34:174, 34 + 6 * i + 3] == [8, 48, 107]).all(-1).sum() for i in range(3)]
    assert heights == [140, 70, 0]
    with pytest.raises(ShapeError, match="edges"):
        bars(np.zeros(3), np.zeros(3), title="x")
