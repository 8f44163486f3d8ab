"""Watch a training loop of your own: metrics for its logger, records in a folder, alarms in the log.

    python examples/monitor_in_your_loop.py

The engine and the trainer are made up here: both have the same policy until step 5, where the trainer begins to forget
the sampling temperature. A real loop has the log-probs already; one call a step is all it takes.
"""

import logging
import tempfile
from pathlib import Path

import numpy as np

import samepolicy as sp

RNG = np.random.default_rng(0)
ROWS, TIME, VOCAB = 8, 24, 50


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def step_of_training(temperature: float, trainer_temperature: float) -> dict[str, np.ndarray]:
    """One batch: the engine samples at a temperature, the trainer scores the same tokens at what it believes it was."""
    logits = 2 * RNG.standard_normal((ROWS, TIME, VOCAB))
    rollout = log_softmax(logits / temperature)
    ids = (rollout + RNG.gumbel(size=rollout.shape)).argmax(-1)[..., None]
    trainer = log_softmax((logits + 1e-3 * RNG.standard_normal(logits.shape)) / trainer_temperature)
    found = {"rollout": rollout, "trainer": trainer}
    batch = {name: np.take_along_axis(side, ids, -1)[..., 0] for name, side in found.items()}
    lengths = RNG.integers(TIME // 2, TIME + 1, (ROWS, 1))
    return batch | {"mask": np.arange(TIME) < lengths, "response_ids": ids[..., 0]}


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    sides = {"rollout": sp.Side(dtype="float32"), "trainer": sp.Side(dtype="float32")}
    with tempfile.TemporaryDirectory() as folder:
        with sp.Monitor(save_dir=Path(folder) / "run", **sides) as monitor:
            for step in range(1, 9):
                batch = step_of_training(0.7, 0.7 if step < 5 else 1.0)
                metrics = monitor(step=step, **batch, reward=RNG.random(ROWS))
                # logger.log(metrics, step=step)
                alarms = int(metrics["samepolicy/monitor/alarms"])
                print(f"step {step}: k3 {metrics['samepolicy/k3/mean']:.2g}, {alarms} alarms on")

        run = sp.read(Path(folder) / "run")
        print(f"{run.tokens} tokens recorded; by step:")
        for step, summary in sp.measure_by(run, "step").items():
            print(f"  {step}: mean abs d {summary['logp_diff']['mean']:.2g} nats")


if __name__ == "__main__":
    main()
