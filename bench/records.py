"""What a recorded token costs on disk: a run folder beside verl's pair of npy files with the same content."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

import samepolicy as sp
from _publish import publish
from samepolicy.records.formats import verl_npy

ROWS, TIME = 256, 8192
LENGTHS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "all of full length": lambda _: np.full(ROWS, TIME),
    "even between 28 % and 100 %": lambda rng: rng.integers(2_300, TIME + 1, ROWS),
    "long tail, median 1,500": lambda rng: np.clip(rng.lognormal(np.log(1_500), 0.8, ROWS), 1, TIME).astype(int),
}


def batch(lengths: np.ndarray, rng: np.random.Generator) -> sp.Run:
    """One step as verl holds it: float32 log-probs with a gap like that of a bf16 engine."""
    mask = np.arange(TIME) < lengths[:, None]
    rollout = -rng.exponential(0.5, (ROWS, TIME)).astype(np.float32)
    trainer = np.minimum(rollout + 0.03 * rng.standard_normal((ROWS, TIME), dtype=np.float32), 0)
    ids = rng.integers(0, 150_000, (ROWS, TIME))
    return sp.Run.from_padded(
        mask=mask, rollout_logp=rollout, trainer_logp=trainer, response_ids=ids, step=np.full(ROWS, 1),
        sample=np.arange(ROWS), info={"shapes": {"1": [ROWS, TIME]}},
    )  # fmt: skip


def size(folder: Path) -> int:
    """Bytes of the files of a folder."""
    return sum(file.stat().st_size for file in folder.iterdir())


def row(name: str, run: sp.Run, folder: Path) -> dict[str, Any]:
    """One line of the table."""
    verl_npy.write(run, folder / "npy")
    same = sp.import_run(folder / "npy")
    sp.write(same, folder / "same")
    start = process_time()
    sp.write(run.without("response_ids"), folder / "both")
    seconds = process_time() - start
    sp.write(run, folder / "ids")
    assert sp.read(folder / "same") == same
    assert sp.read(folder / "ids") == run
    pair, ours, both, ids = (size(folder / n) / run.tokens for n in ("npy", "same", "both", "ids"))
    return {
        "lengths": name,
        "valid of all places": f"{run.tokens / (ROWS * TIME):.0%}",
        "npy pair, bytes a token": f"{pair:.2f}",
        "same content here": f"{ours:.2f}",
        "share": f"{ours / pair:.0%}",
        "both log-probs and mask": f"{both:.2f}",
        "with ids": f"{ids:.2f}",
        "write, CPU ns a token": round(1e9 * seconds / run.tokens),
    }


def main() -> None:
    """Run and publish."""
    rows = []
    for name, lengths in LENGTHS.items():
        rng = np.random.default_rng(0)
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row(name, batch(lengths(rng), rng), Path(folder)))
    title = (
        f"Bytes of a valid token on disk, one step of [{ROWS}, {TIME}] float32, nothing rounded. The npy pair holds "
        "prob_diff and mask, padded; a run folder holds both without padding (zstd, floats split by byte). Noise "
        "cannot be compressed, and most of a float32 is noise: where nearly all places are valid, the share is larger."
    )
    publish("records", title, rows, packages=("pyarrow",))


if __name__ == "__main__":
    main()
