"""Correct the loss of your own training loop, and ask of the recorded steps what other corrections would have done.

    python examples/correct_in_your_loop.py

A toy of a loop in NumPy: torch tensors go in and come out the same way, on any device, and the weights carry no
gradient. The trainer's log-probs drift away from the rollout's as the steps go on.
"""

import tempfile
from typing import Any

import numpy as np

import samepolicy as sp

RNG = np.random.default_rng(0)
BY_MASK = True
STEPS, PROMPTS, SAMPLES, TIME = 24, 16, 4, 32

correct = sp.Correction(
    sp.Truncate(2.0),  # weigh each token by its ratio, at most 2
    sp.Veto(below=1e-4),  # an impossible token takes its whole response out
)


def batch(step: int) -> dict[str, np.ndarray]:
    """What a trainer holds at each step: both log-probs, a mask and advantages, [batch, time]."""
    rows = PROMPTS * SAMPLES
    rollout = -RNG.exponential(0.8, (rows, TIME))
    gap = (0.05 if step < 12 else 0.4) * RNG.standard_normal((rows, TIME))
    rewards = RNG.standard_normal((PROMPTS, SAMPLES))
    advantage = (rewards - rewards.mean(1, keepdims=True)).reshape(-1, 1)
    return {
        "rollout": rollout,
        "trainer": np.minimum(rollout + gap, 0),
        "mask": np.arange(TIME) < RNG.integers(8, TIME, rows)[:, None],
        "advantage": np.broadcast_to(advantage, rollout.shape),
    }


def train_step(data: dict[str, np.ndarray]) -> tuple[float, Any]:
    """One step: the loss, and what the correction saw and did."""
    weights, kept, stats = correct(trainer=data["trainer"], rollout=data["rollout"], mask=data["mask"])
    per_token = -data["advantage"]  # your policy loss; PPO's ratio is against the trainer's old log-probs
    divisor = data["mask"] if BY_MASK else kept  # frameworks differ here
    loss = (weights * per_token).sum() / divisor.sum()
    return float(loss), stats


def record(data: dict[str, np.ndarray], folder: str, step: int) -> None:
    """Keep the step, so that `samepolicy correct FOLDER` can be asked later."""
    run = sp.Run.from_padded(
        rollout_logp=data["rollout"],
        trainer_logp=data["trainer"],
        mask=data["mask"],
        advantage=data["advantage"],
        group=[f"{step}-{i // SAMPLES}" for i in range(PROMPTS * SAMPLES)],  # responses to one prompt
    )
    sp.write(run, folder, step=step)


def main() -> None:
    total = None
    with tempfile.TemporaryDirectory() as folder:
        for step in range(STEPS):
            data = batch(step)
            loss, stats = train_step(data)
            total = stats if total is None else total + stats  # micro-batches, ranks and steps add up
            record(data, folder, step)
            if step % 8 == 0:
                logged = stats.flat()
                raw, applied = (logged[f"samepolicy/correction/{side}/ess_token"] for side in ("raw", "applied"))
                print(f"step {step:2}: loss {loss:+.4f}, token ESS {raw:.3f} raw, {applied:.3f} applied")
        print(total, "\n")

        found = sp.whatif(sp.stream(folder), ["tis", "icepop", "sequence-tis", "m2po"])  # one part in memory at a time
        print("What-if over all steps:", found, sep="\n")
        print("\nEarly warning:", *sp.trend(sp.stream(folder)).values(), sep="\n")


if __name__ == "__main__":
    main()
