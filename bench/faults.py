"""How often the diagnosis is right: real faults on SmolLM2, healthy runs, faults on no list, and stacked pairs.

    python bench/faults.py                     # the reporting split; an interrupted run goes on where it stopped
    python bench/faults.py --split develop --only shift
    python bench/faults.py --part 1/2 & python bench/faults.py --part 2/2 & wait; python bench/faults.py --publish

Rollouts, and their scores under the reference, are made once and shared by all faults of the trainer. Each case is one
line of bench/results/faults-SPLIT.jsonl, with the commit that it was judged at; delete the file to begin anew.
"""

import argparse
import json
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from scipy.stats import binomtest

import samepolicy as sp
from _faults import models
from _faults.base import Fault
from _faults.lists import healthy, listed, stacked, unlisted
from _faults.trainer import Trainer
from _publish import ROOT, publish
from samepolicy.causes.base import alike, all_causes
from samepolicy.demo import PROMPTS
from samepolicy.floor import add_evidence
from samepolicy.testing import smollm2_folder

TOKENS, SMALL, NEAR = 64, 2.0, 0.2
FOLDER = ROOT / "build" / "faults"
SCORED = ("rollout_logp", "trainer_logp")
KEPT = ("cause", "parameters", "explained", "interval", "nats", "side", "proof", "alternatives")
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
    parser.add_argument("--only", default="", help="only cases whose name matches this expression")
    parser.add_argument("--part", default="1/1", help="of several processes, which this is: 1/2")
    parser.add_argument("--first", action="store_true", help="one severity of each fault")
    parser.add_argument("--publish", action="store_true", help="only publish what was found so far")
    told = parser.parse_args()
    results = ROOT / "bench" / "results" / f"faults-{told.split}.jsonl"
    results.parent.mkdir(exist_ok=True)
    known = {case["key"] for case in read(results)}
    if not told.publish:
        part, parts = map(int, told.part.split("/"))
        bench = Bench(told.split)
        chosen = [case for case in cases(first=told.first) if re.search(told.only, case[1])][part - 1 :: parts]
        for i, (kind, key, faults) in enumerate(chosen):
            if key in known:
                continue
            found = {"kind": kind, "key": key, "truth": [f.cause for f in faults], **bench.judge(faults)}
            with results.open("a") as file:
                file.write(json.dumps({"commit": commit(), **found}).replace(f"{ROOT}/", "") + "\n")
            print(f"{i + 1}/{len(chosen)} {key}: {found['verdict']} {found['named']} {found['seconds']} s", flush=True)
    report(read(results), told.split)


def read(results: Path) -> list[dict[str, Any]]:
    """What was found so far."""
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def commit() -> str:
    """The commit of the code."""
    return subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()


def slug(text: str) -> str:
    """A text as a file name."""
    return re.sub(r"[^\w.+-]+", "_", text)


def cases(*, first: bool = False) -> Iterator[tuple[str, str, tuple[Fault, ...]]]:
    """Every case: its kind, its key and its faults; first one severity of each, so that a part is a fair sample."""
    groups: dict[str, list[Fault]] = {}
    for fault in listed():
        groups.setdefault(fault.name, []).append(fault)
    depth = 1 if first else max(map(len, groups.values()))
    rounds = [[g[(len(g) // 2 + r) % len(g)] for g in groups.values() if r < len(g)] for r in range(depth)]
    begin, *rest = [[("listed", f.key, (f,)) for f in some] for some in rounds]
    plain = [("healthy", f.key, (f,)) for f in healthy()]
    strange = [("unlisted", f.key, (f,)) for f in unlisted()]
    pairs = [("stacked", f"{a.key} + {b.key}", (a, b)) for a, b in stacked()]
    yield from chain(begin, plain, strange, pairs, *rest)


class Bench:
    """The engines, the rollouts, and what they are put together to."""

    def __init__(self, split: str) -> None:
        self.split, self.path = split, smollm2_folder(FOLDER)
        self.trainer = Trainer(str(self.path))
        self._engines: dict[str, Any] = {}
        texts = PROMPTS.read_text("utf-8").splitlines() if split == "develop" else REPORT
        self.prompts = sp.Ragged.from_lists([self.engine().encode(text) for text in texts], dtype=np.int64)

    def engine(self, dtype: str = "bfloat16", adapter: tuple[float, float] | None = None, kind: str = "hf") -> Any:
        """An engine, loaded once; of those with an adapter only the last is kept."""
        key = f"{kind} {dtype} {adapter}"
        if key not in self._engines:
            self._engines = {k: e for k, e in self._engines.items() if k.endswith("None")}
            more = {"adapter": str(self.adapter(adapter))} if adapter else {}
            self._engines[key] = sp.engine(f"{kind}:{self.path}", dtype=dtype, **more)
        return self._engines[key]

    def adapter(self, told: tuple[float, float]) -> Path:
        """The folder of an adapter."""
        return models.adapter(FOLDER / f"adapter-{told[0]}-{told[1]}", *told, self.trainer.plain)

    def checkpoint(self, name: str) -> str:
        """The folder of earlier weights."""
        folder = FOLDER / slug(name)
        if not folder.exists():
            import copy

            models.CHECKPOINTS[name](copy.deepcopy(self.trainer.plain)).save_pretrained(folder)
            self.trainer.tokenizer.save_pretrained(folder)
        return str(folder)

    def rollout(self, settings: dict[str, Any]) -> sp.Run:
        """A rollout, from disk if it is there."""
        folder = FOLDER / slug("-".join(["rollout", self.split, *(f"{k}{v}" for k, v in settings.items())]))
        if not folder.exists():
            sp.write(self._sampled(**settings), folder)
        return sp.read(folder)

    def _sampled(
        self,
        *,
        seed: int = 1,
        engine: str = "hf",
        dtype: str = "bfloat16",
        adapter: tuple[float, float] | None = None,
        generate: dict[str, Any] | None = None,
        max_tokens: int = TOKENS,
        **settings: Any,
    ) -> sp.Run:
        """A rollout: by an engine of this package, or by transformers' own `generate`."""
        seed += 10 * (self.split == "report")
        sampling = sp.Sampling(max_tokens=max_tokens, seed=seed, **settings)
        sampler = self.engine(dtype, adapter, engine)
        if generate is None:
            return sampler.generate(self.prompts, sampling)  # type: ignore[no-any-return]
        prompts = [row.tolist() for row in self.prompts]
        responses, logp = self.trainer.sample(prompts, tokens=max_tokens, seed=seed, **generate)
        return sp.Run.from_lists(
            prompt_ids=prompts, response_ids=responses, rollout_logp=logp, rollout=sampler.describe(sampling)
        )

    def declared(self, fault: Fault) -> tuple[sp.Run, str]:
        """The rollout with what both sides say, and its scores under the reference; and a name for it."""
        run = self.rollout(fault.rollout)
        assert run.rollout.sampling is not None
        told = run.rollout.sampling
        if fault.declared is not None:
            told = sp.Sampling(**fault.declared, max_tokens=told.max_tokens)
        engine = self.engine(fault.dtype, fault.adapter)
        sides = {"rollout": replace(run.rollout, sampling=told), "trainer": engine.describe(told)}
        name = slug(f"scored-{self.split}-{fault.rollout}-{fault.declared}-{fault.dtype}-{fault.adapter}")
        if not (FOLDER / name).exists():
            sp.write(add_evidence(replace(run, **sides), engine), FOLDER / name)
        return sp.read(FOLDER / name), name

    def run(self, faults: Sequence[Fault]) -> sp.Run:
        """A run with these faults."""
        whole = replace(
            faults[0],
            rollout={k: v for fault in faults for k, v in fault.rollout.items()},
            trainer={k: v for fault in faults for k, v in fault.trainer.items()},
            declared=next((f.declared for f in faults if f.declared is not None), None),
            adapter=next((f.adapter for f in faults if f.adapter is not None), None),
        )
        run, _ = self.declared(whole)
        mistakes = dict(whole.trainer)
        if mistakes.pop("adapter", False):
            assert whole.adapter is not None
            mistakes["model"] = models.adapted(self.adapter(whole.adapter))
        prompts, responses = ([row.tolist() for row in run[name]] for name in ("prompt_ids", "response_ids"))
        columns: dict[str, Any] = {
            "prompt_ids": prompts,
            "response_ids": responses,
            "rollout_logp": [row.astype(np.float64) for row in run["rollout_logp"]],
            "trainer_logp": self.trainer.score(prompts, responses, dtype=whole.dtype, **mistakes),
        }
        rng = np.random.default_rng(0)
        for fault in faults:
            columns = fault.arrays(columns, rng) if fault.arrays else columns
        if columns["response_ids"] is responses and set(columns) == {"prompt_ids", "response_ids", *SCORED}:
            return run.with_columns(**{n: sp.Ragged.from_lists(columns[n], dtype=np.float32) for n in SCORED})
        return sp.Run.from_lists(**columns, rollout=run.rollout, trainer=run.trainer)

    def judge(self, faults: Sequence[Fault]) -> dict[str, Any]:
        """What the diagnosis says of a run with these faults."""
        run = self.run(faults)
        engine = self.engine(faults[0].dtype, next((f.adapter for f in faults if f.adapter), None))
        checkpoints = [self.checkpoint(f.checkpoint) for f in faults if f.checkpoint]
        start = perf_counter()
        found = sp.diagnose(run, trainer=engine, checkpoints=checkpoints)
        return {
            "seconds": round(perf_counter() - start, 1),
            "verdict": found.verdict,
            "named": [finding.cause for finding in found.findings],
            "findings": [{key: finding.as_dict()[key] for key in KEPT} for finding in found.findings],
            "expected": {k: v for fault in faults for k, v in fault.expected.items()},
            "gap": found.gap and found.gap.as_dict(),
            "sentence": found.sentence,
        }


def report(done: list[dict[str, Any]], split: str) -> None:
    """The tables, and what was missed."""
    for case in done:
        ratio = (case["gap"] or {}).get("ratio")
        if case["kind"] == "listed" and case["truth"] != ["truncated_hidden"] and ratio is not None and ratio < SMALL:
            case["kind"] = "too small"
    kinds = ("listed", "stacked", "healthy", "unlisted", "too small")
    rows = [_row(kind, [c for c in done if c["kind"] == kind]) for kind in kinds]
    misses = [_miss(c) for c in done if not right(c)]
    if split == "report":
        publish("faults", _title(done), rows, packages=("torch", "transformers"))
        publish("faults-named", "What was named first, by the cause that was there.", _confusion(done), script="faults")
        publish("faults-missed", "Every case that was told wrong.", misses, script="faults")
    else:
        print(*rows, *misses, sep="\n")
    print(f"Parameters: {_parameters(done)}\nLedger: {_ledger(done)}")


def right(case: dict[str, Any]) -> bool:
    """Whether a case was told right: the cause first, both causes of a pair, no name where there is none."""
    named, truth = case["named"], case["truth"]
    if case["kind"] == "stacked":
        return all(any(_same(name, cause) for name in named) for cause in truth)
    if case["kind"] == "too small":  # arrays may prove what the gap does not show
        return not named or _same(named[0], truth[0])
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
        "listed": "its cause named first",
        "stacked": "both causes named",
        "healthy": "no name, `same` or `numerics`",
        "unlisted": "no name",
        "too small": "no name, or its cause",
    }
    hits = sum(map(right, found))
    share = binomtest(hits, len(found)).proportion_ci(method="wilson") if found else None
    return {
        "runs": f"listed, gap below {SMALL:g} floors²" if kind == "too small" else kind,
        "what is right": what[kind],
        "right": f"{hits} of {len(found)}",
        "95 % interval": f"{share.low:.0%} to {share.high:.0%}" if share else "",
        "median seconds": round(median(c["seconds"] for c in found), 1) if found else "",
    }


def _confusion(done: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every truth, how often which cause was named first."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for case in done:
        if case["kind"] in ("listed", "healthy", "unlisted", "too small"):
            table[case["truth"][0] or "on no list"][next(iter(case["named"]), "none")] += 1
    return [
        {
            "cause": truth,
            "runs": sum(named.values()),
            "named first": ", ".join(f"{n} {k}" for n, k in named.most_common()),
        }
        for truth, named in sorted(table.items())
    ]


def _miss(case: dict[str, Any]) -> dict[str, Any]:
    """One case that was told wrong."""
    return {
        "case": case["key"],
        "kind": case["kind"],
        "verdict": case["verdict"],
        "named": ", ".join(case["named"]) or "nothing",
        "gap, floors²": round((case["gap"] or {}).get("ratio") or 0, 1),
    }


def _parameters(done: list[dict[str, Any]]) -> str:
    """How far the estimated parameters are from the true ones."""
    errors = [
        abs(float(found["parameters"][name]) / value - 1)
        for case in done
        for name, value in case["expected"].items()
        for found in case["findings"]
        if name in found["parameters"] and found["cause"] in case["truth"]
    ]
    return f"median error {median(errors):.2%}, largest {max(errors):.2%}, of {len(errors)}" if errors else "none"


def _ledger(done: list[dict[str, Any]]) -> str:
    """How many rows of stacked pairs are near what the fault moves alone."""
    alone = {c["key"]: f["nats"] for c in done if c["kind"] == "listed" for f in c["findings"][:1] if right(c)}
    near = [
        abs(found["nats"] / alone[key] - 1) <= NEAR
        for case in done
        if case["kind"] == "stacked"
        for key, cause in zip(case["key"].split(" + "), case["truth"], strict=True)
        for found in case["findings"]
        if found["cause"] == cause and found["nats"] and alone.get(key)
    ]
    return f"{sum(near)} of {len(near)} rows of stacked pairs are within {NEAR:.0%} of the fault alone"


def _title(done: list[dict[str, Any]]) -> str:
    """What was run."""
    kinds = Counter(c["kind"] for c in done)
    return (
        f"Diagnosis of {len(done)} of {sum(1 for _ in cases())} cases on SmolLM2-135M, 16 × {TOKENS} tokens, bf16 "
        f"unless said: {kinds['listed'] + kinds['too small']} runs with a fault of the catalogue (of which "
        f"{kinds['too small']} move too little to tell from rounding), {kinds['stacked']} stacked pairs, "
        f"{kinds['healthy']} healthy, {kinds['unlisted']} faults on no list. Parameters: {_parameters(done)}. "
        f"Ledger: {_ledger(done)}."
    )


if __name__ == "__main__":
    main()
