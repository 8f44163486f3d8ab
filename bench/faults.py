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
from pathlib import Path
from typing import Any

from _faults.bench import Bench
from _faults.cases import cases
from _faults.tables import report
from _publish import ROOT


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


if __name__ == "__main__":
    main()
