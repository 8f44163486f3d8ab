"""How often the diagnosis is right: real faults on SmolLM2, healthy runs, faults on no list, and stacked pairs.

    python bench/faults.py                     # the reporting split; an interrupted run goes on where it stopped
    python bench/faults.py --split develop --only "shift"

Rollouts are sampled once and shared by all faults of the trainer. Results are kept in build/faults as JSON.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from scipy.stats import binomtest

import samepolicy as sp
from _faults import Fault, Trainer, _noisy, healthy, listed, stacked, unlisted
from _publish import ROOT, publish
from samepolicy.causes.base import alike, all_causes
from samepolicy.demo import PROMPTS
from samepolicy.testing import smollm2_folder

TOKENS, SMALL = 64, 2.0
FOLDER = ROOT / "build" / "faults"
REPORT = (
    "Why do cats purr?",
    "Give me a recipe for pancakes without eggs.",
    "Write a limerick about a lost umbrella.",
    "What is 23 times 19? Explain each step.",
    "Describe how a bicycle stays upright.",
    "Name five rivers of South America.",
    "How would you explain money to a Martian?",
    "Write a short letter that declines an invitation.",
    "What causes thunder?",
    "Compare tea and coffee in three sentences.",
    "List the planets by their size.",
    "Tell a story about a clock that runs backwards.",
    "How do I remove a wine stain from a carpet?",
    "What is the difference between weather and climate?",
    "Suggest a name for a bakery and say why.",
    "Explain recursion with an everyday example.",
)


def main() -> None:
    """Run what is missing, then publish."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", choices=("develop", "report"), default="report")
    parser.add_argument("--only", default="", help="only faults whose name holds this")
    parser.add_argument("--publish", action="store_true", help="only publish what was found so far")
    told = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = FOLDER / f"{told.split}.json"
    done: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    if not told.publish:
        bench = Bench(told.split)
        waiting = [(kind, key, faults) for kind, key, faults in cases() if key not in done and told.only in key]
        for i, (kind, key, faults) in enumerate(waiting):
            done[key] = {"kind": kind, "truth": [f.cause for f in faults], **bench.judge(faults)}
            results.write_text(json.dumps(done, indent=1))
            print(f"{i + 1}/{len(waiting)} {key}: {done[key]['verdict']} {done[key]['named']}", flush=True)
    if told.split == "report" and not told.only:
        report(done)


def cases() -> Iterator[tuple[str, str, tuple[Fault, ...]]]:
    """Every case: its kind, its key and its faults; first one severity of each, so that a part is a fair sample."""
    groups: dict[str, list[Fault]] = {}
    for fault in listed():
        groups.setdefault(fault.name, []).append(fault)
    depth = max(map(len, groups.values()))
    rounds = [[g[(len(g) // 2 + r) % len(g)] for g in groups.values() if r < len(g)] for r in range(depth)]
    plain = [("healthy", f.key, (f,)) for f in healthy()]
    strange = [("unlisted", f.key, (f,)) for f in unlisted()]
    pairs = [("stacked", f"{a.key} + {b.key}", (a, b)) for a, b in stacked()]
    first, *rest = [[("listed", f.key, (f,)) for f in some] for some in rounds]
    yield from chain(first, plain, strange, pairs, *rest)


class Bench:
    """The engines, the rollouts, and what they are put together to."""

    def __init__(self, split: str) -> None:
        self.split, self.path = split, smollm2_folder(FOLDER)
        self.engine = sp.engine(f"hf:{self.path}", dtype="bfloat16")
        self.trainer = Trainer(self.path, "bfloat16")
        texts = PROMPTS.read_text("utf-8").splitlines() if split == "develop" else REPORT
        self.prompts = sp.Ragged.from_lists([self.engine.encode(text) for text in texts], dtype=np.int64)

    def rollout(self, settings: dict[str, Any]) -> sp.Run:
        """A rollout, from disk if it is there."""
        shaping = {name: value for name, value in settings.items() if name != "raw"}
        name = "-".join([self.split, *(f"{k}{v}" for k, v in settings.items())])
        sampling = sp.Sampling(
            **shaping,
            logprobs="raw" if settings.get("raw") else "processed",
            max_tokens=TOKENS,
            seed=1 + (self.split == "report"),
        )
        if not (FOLDER / name).exists():
            sp.write(self.engine.generate(self.prompts, sampling), FOLDER / name)
        return sp.read(FOLDER / name)

    def run(self, faults: Sequence[Fault]) -> sp.Run:
        """A run with these faults."""
        settings = {k: v for fault in faults for k, v in fault.rollout.items()}
        mistakes = {k: v for fault in faults for k, v in fault.trainer.items()}
        said = next((f.declared for f in faults if f.declared is not None), None)
        run = self.rollout(settings)
        prompts, responses = ([row.tolist() for row in run[name]] for name in ("prompt_ids", "response_ids"))
        columns = {
            "rollout_logp": [row.astype(np.float64) for row in run["rollout_logp"]],
            "trainer_logp": self.trainer.score(prompts, responses, **mistakes),
        }
        rng = np.random.default_rng(0)
        for fault in faults:
            columns = fault.arrays(columns, rng) if fault.arrays else columns
        assert run.rollout.sampling is not None
        told = run.rollout.sampling if said is None else sp.Sampling(**said, max_tokens=TOKENS)
        packed = {name: sp.Ragged.from_lists(rows, dtype=np.float32) for name, rows in columns.items()}
        sides = {"rollout": replace(run.rollout, sampling=told), "trainer": self.engine.describe(told)}
        return replace(run, **sides).with_columns(**packed)

    def judge(self, faults: Sequence[Fault]) -> dict[str, Any]:
        """What the diagnosis says of a run with these faults."""
        run = self.run(faults)
        start = perf_counter()
        found = sp.diagnose(run, trainer=self.engine, checkpoints=[self.checkpoint(faults)] * self.older(faults))
        return {
            "seconds": round(perf_counter() - start, 1),
            "verdict": found.verdict,
            "named": [finding.cause for finding in found.findings],
            "parameters": [dict(finding.parameters) for finding in found.findings],
            "expected": {k: v for fault in faults for k, v in fault.expected.items()},
            "gap": found.gap and found.gap.as_dict(),
            "sentence": found.sentence,
        }

    def older(self, faults: Sequence[Fault]) -> bool:
        """Whether an earlier checkpoint belongs to the case."""
        return any(fault.cause in ("stale_weights", "partial_sync") for fault in faults)

    def checkpoint(self, faults: Sequence[Fault]) -> str:
        """The folder of the earlier weights."""
        share = next((float(f.severity.strip("%")) / 100 for f in faults if f.cause == "stale_weights"), 0.05)
        folder = FOLDER / f"older-{share}"
        if self.older(faults) and not folder.exists():
            import copy

            _noisy(share)(copy.deepcopy(self.trainer.plain)).save_pretrained(folder)
            self.trainer.tokenizer.save_pretrained(folder)
        return str(folder)


def report(done: dict[str, Any]) -> None:
    """The table of the whole and the confusions."""
    for case in done.values():
        ratio = (case["gap"] or {}).get("ratio")
        if case["kind"] == "listed" and ratio is not None and ratio < SMALL:
            case["truth"] = ["numerics"]  # too small to tell from rounding
    rows = [
        _row(kind, [c for c in done.values() if c["kind"] == kind])
        for kind in ("listed", "stacked", "healthy", "unlisted")
    ]
    publish("faults", _title(done), rows, packages=("torch", "transformers"))
    misses = [
        f"{key}: {c['verdict']}, named {', '.join(c['named']) or 'nothing'}" for key, c in done.items() if not right(c)
    ]
    (FOLDER / "misses.txt").write_text("\n".join(misses))
    print("\nMisses:", *misses, sep="\n  ")


def right(case: dict[str, Any]) -> bool:
    """Whether a case was told right: the cause first, both causes of a pair, no name where there is none."""
    named, truth = case["named"], case["truth"]
    if case["kind"] == "stacked":
        return all(any(_same(name, cause) for name in named) for cause in truth)
    if truth == ["numerics"]:
        return not named and case["verdict"] in ("same", "numerics")
    if truth == [""]:
        return not named
    return bool(named) and _same(named[0], truth[0])


def _same(one: str, other: str) -> bool:
    """Whether two names are one, or of one class."""
    return one == other or (one in all_causes() and other in all_causes() and alike(one, other))


def _row(kind: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """One line of the table."""
    what = {
        "listed": "cause named first",
        "stacked": "both causes named",
        "healthy": "no name, `same` or `numerics`",
        "unlisted": "no name",
    }
    hits = sum(map(right, found))
    share = binomtest(hits, len(found)).proportion_ci(method="wilson") if found else None
    return {
        "runs": kind,
        "what is right": what[kind],
        "right": f"{hits} of {len(found)}",
        "95 % interval": f"{share.low:.0%} to {share.high:.0%}" if share else "",
        "median seconds": round(median(c["seconds"] for c in found), 1) if found else "",
    }


def _title(done: dict[str, Any]) -> str:
    """What was run."""
    kinds = Counter(c["kind"] for c in done.values())
    total = sum(1 for _ in cases())
    return (
        f"Diagnosis of {len(done)} of {total} cases on SmolLM2-135M, bf16 on both sides, 16 × {TOKENS} tokens: "
        f"{kinds['listed']} faults of the catalogue, {kinds['stacked']} stacked pairs, {kinds['healthy']} healthy, "
        f"{kinds['unlisted']} faults on no list. The faults are made by plain transformers code; their gaps below "
        f"{SMALL:g} floors² count as healthy."
    )


if __name__ == "__main__":
    main()
