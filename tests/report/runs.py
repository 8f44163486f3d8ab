"""Runs that reports are made of: the recorded one, one with a fault, one that attacks the page, a large one."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import samepolicy as sp
from samepolicy.arrays import Ragged
from samepolicy.report import data

HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    '<img src=x onerror="window.hacked = 1">',
    "<!-- <script>",
    "]]>&lt;b&gt;\u2028\u2029",
    "\u202eright to left\u202c \u200f\u061c",
    "\ud800 lone \udfff",
    "{{ 7 * 7 }} ${window.hacked = 1} `",
    "javascript:window.hacked=1",
    "\x00\x07\x1b[31m\r\n\t",
    "__proto__",
    "正常的文字 😀",
]
"""Texts that must be shown as text."""

FINDING: dict[str, Any] = {
    "cause": "temperature",
    "rung": "sampling",
    "parameters": {"temperature": 0.7},
    "explained": 0.97,
    "interval": [0.93, 1.0],
    "nats": 0.31,
    "side": "trainer",
    "proof": "undone",
    "evidence": "at temperature 0.7 the gap closes from 58.9 to 1.1 floors²",
    "fix": "Divide the trainer's logits by the sampling temperature.",
}


@cache
def faulty(**fault: Any) -> sp.Diagnosis:
    """A toy run whose trainer has a fault."""
    toys = {"rollout": sp.engine("toy:", dtype="bfloat16"), "trainer": sp.engine("toy:", dtype="bfloat16", **fault)}
    prompts = [f"prompt number {i}" for i in range(12)]
    return sp.check(**toys, prompts=prompts, sampling=sp.Sampling(max_tokens=16))


def with_finding(value: dict[str, Any]) -> dict[str, Any]:
    """The value of a report whose diagnosis names a cause, in the form that `Diagnosis.as_dict` has."""
    from samepolicy.report.plots.verdict import sketch_ledger

    rows = [{"cause": "temperature", "side": "trainer", "nats": 0.31, "reopens": 1.0}]
    named = value | {"findings": [FINDING], "ledger": {"total": 0.35, "rows": rows}, "residual": {"mean_abs": 0.04}}
    return named | {"figures": value["figures"] | {"ledger": sketch_ledger(named).as_dict()}}


def hostile() -> tuple[sp.Run, dict[int, bytes]]:
    """A run whose every text attacks the page, with the bytes of its ids; one id is a token of ten megabytes."""
    pieces = {i: text.encode("utf-8", "surrogatepass") for i, text in enumerate(HOSTILE)}
    pieces |= {100: b"\xff\xfe\x80", 101: "你".encode()[:2], 102: b"x" * 10_000_000}
    ids = [*pieces, *pieces]
    rng = np.random.default_rng(0)
    rows = len(HOSTILE)
    rollout = [-rng.exponential(1.0, len(ids)) for _ in range(rows)]
    run = sp.Run.from_lists(
        response_ids=[ids] * rows,
        rollout_logp=rollout,
        trainer_logp=[np.minimum(r + rng.normal(0, 0.3, len(ids)), 0) for r in rollout],
        text=HOSTILE,
        prompt_text=HOSTILE,
        finish_reason=HOSTILE,
        group=HOSTILE,
        rollout=sp.Side(engine=HOSTILE[0], model=HOSTILE[1], dtype="bfloat16", extra={HOSTILE[2]: HOSTILE[3]}),
        trainer=sp.Side(engine=HOSTILE[4], model=HOSTILE[5], dtype="bfloat16"),
    )
    return run, pieces


def large(responses: int = 256, tokens: int = 4096) -> sp.Run:
    """A batch as large as they come, with entropy and advantages; no two numbers alike, so that nothing packs well."""
    rng = np.random.default_rng(0)
    count = responses * tokens
    rollout = -rng.exponential(0.8, count)
    trainer = np.minimum(rollout + 0.05 * rng.standard_t(4, count), 0)
    columns = {
        "response_ids": rng.integers(0, 150_000, count),
        "rollout_logp": rollout.astype(np.float32),
        "trainer_logp": trainer.astype(np.float32),
        "trainer_entropy": rng.exponential(1, count).astype(np.float32),
        "advantage": rng.standard_normal(count).astype(np.float32),
        "policy_version": rng.integers(0, 9, count),
    }
    offsets = np.arange(responses + 1) * tokens
    return sp.Run({name: Ragged(values, offsets) for name, values in columns.items()})


def embedded_value(page: str) -> Any:
    """The JSON value that a page holds."""
    head = '<script type="application/json" id="data">'
    start = page.index(head) + len(head)
    return json.loads(page[start : page.index("</script>", start)])


def value_of(found: sp.Diagnosis, **options: Any) -> dict[str, Any]:
    """The value of a report."""
    return data.of_report(found, **options)


def tokenizer_json(folder: Path) -> Path:
    """A small byte-level tokenizer.json."""
    vocabulary = {"a": 0, "Ġb": 1, "ä½": 2, "Ċ": 3}
    made = {
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": 4, "content": "<|im_end|>"}],
    }
    (folder / "tokenizer.json").write_text(json.dumps(made), encoding="utf-8")
    return folder
