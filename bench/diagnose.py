"""How long a whole diagnosis takes, by what is wrong: 32 responses of 128 tokens, SmolLM2-135M, all cores.

Nothing is scored beforehand but what a run records: the time holds the reference, the floor, the search and the ledger.
"""

from dataclasses import replace
from time import perf_counter

import samepolicy as sp
from _faults.base import Fault
from _faults.bench import Bench
from _faults.cases import cases
from _publish import publish

KEYS = (
    "healthy seed 1, trainer bfloat16",
    "shift +1",
    "trainer's temperature 1.1",
    "no template seed 1",
    "RoPE base 2000",
    "older weights 5%",
    "rounded weights 4 bits",
    "norm epsilon 0.001 + trainer's temperature 1.5",
    "older weights 5% + shift +1",
    "noise 0.2",
    "layer left out 8",
    "soft cap 15",
)
EVIDENCE = ("_reference_logp", "_rounded_logp")


def main() -> None:
    """Time every case once, each in a fresh search."""
    bench = Bench("both")
    known = {key: faults for _, key, faults in cases()}
    rows = []
    for key in KEYS:
        faults = tuple(longer(fault) for fault in known[key])
        run = bench.run(faults)
        bare = run.without(*(name for name in run.columns if name.endswith(EVIDENCE)))
        checkpoints = [bench.checkpoint(fault.checkpoint) for fault in faults if fault.checkpoint]
        start = perf_counter()
        found = sp.diagnose(bare, trainer=bench.engine(faults[0].dtype), checkpoints=checkpoints)
        named = ", ".join(finding.cause for finding in found.findings) or "nothing"
        rows.append({"run": key, "verdict": found.verdict, "named": named, "seconds": round(perf_counter() - start, 1)})
        print(rows[-1], flush=True)
    title = f"A whole diagnosis of {len(bare)} responses, {bare.tokens} tokens, of SmolLM2-135M in bf16, on 2 cores."
    publish("diagnose", title, rows, packages=("torch", "transformers"))


def longer(fault: Fault) -> Fault:
    """The fault on responses of 128 tokens."""
    return replace(fault, rollout={**fault.rollout, "max_tokens": 128})


if __name__ == "__main__":
    main()
