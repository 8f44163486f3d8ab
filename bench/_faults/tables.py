"""What was told right, what was missed, and the tables of it."""

from collections import Counter, defaultdict
from statistics import median
from typing import Any

from scipy.stats import binomtest

from _faults.bench import TOKENS
from _faults.cases import cases
from _publish import publish
from samepolicy.causes.base import alike, all_causes

SMALL, NEAR = 2.0, 0.2
"""A gap below so many floors² moves too little to tell from rounding; a ledger row is right within this share."""


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
        f"Ledger: {_ledger(done)}. Commits: {', '.join(dict.fromkeys(c['commit'] for c in done))}."
    )
