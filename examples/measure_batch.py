"""Measure batches as they come, in NumPy or torch, and read the numbers once at the end.

    python examples/measure_batch.py

A trainer has the log-probs of both sides in padded [batch, time] arrays. Each batch is reduced where it lives; two
summaries add up to the summary of both batches, so micro-batches, ranks and steps merge before any number is read.
"""

import numpy as np

import samepolicy as sp

RNG = np.random.default_rng(0)


def batch(noise: float, lengths: list[int]) -> dict[str, np.ndarray]:
    """Made-up log-probs: the trainer differs from the rollout by rounding of this size."""
    shape = (len(lengths), max(lengths))
    rollout = -RNG.exponential(0.6, shape)
    trainer = np.minimum(rollout + noise * RNG.standard_normal(shape), 0)
    return {"rollout": rollout, "trainer": trainer, "mask": np.arange(shape[1]) < np.array(lengths)[:, None]}


def main() -> None:
    summary = sp.measure_batch(**batch(0.02, [30, 12, 25]))
    summary += sp.measure_batch(**batch(0.03, [18, 40]))

    print(summary.counts.tokens, "tokens in", summary.counts.sequences, "responses")
    for name in ("logp_diff", "k3", "ess_token"):
        readouts = summary[name]
        print(f"{name}:", ", ".join(f"{key} {value:.4g}" for key, value in readouts.items()))

    print("what it lacked:", dict(summary.missing))

    # under the names that users of a framework know
    summary = sp.measure_batch(**batch(0.02, [30, 12, 25]), names="verl")
    for key, value in summary.flat("verl").items():
        print(f"{key}: {value:.4g}")


if __name__ == "__main__":
    main()
