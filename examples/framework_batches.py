"""Ten lines for slime, OpenRLHF, NeMo-RL and prime-rl: hand what their loss function holds to the monitor.

    python examples/framework_batches.py

Each recipe turns the fields of that framework's own batch, in its own layout, into the monitor's columns. The batches
here are made up in those layouts from one toy rollout, so all four must measure the same numbers.
"""

from typing import Any

import numpy as np

import samepolicy as sp

Columns = dict[str, Any]


def slime(batch: dict[str, list[np.ndarray]]) -> Columns:
    """Lists with one array per response: what `policy_loss_function` and a custom TIS function receive."""
    return {
        "trainer": np.concatenate(batch["log_probs"]),
        "rollout": np.concatenate(batch["rollout_log_probs"]),
        "mask": np.concatenate(batch["loss_masks"]),
        "advantage": np.concatenate(batch["advantages"]),
        "offsets": np.cumsum([0, *batch["response_lengths"]]),  # with context parallelism: all_gather_with_cp first
    }


def openrlhf(experience: Any) -> Columns:
    """Padded [batch, actions] fields of an Experience, in `training_step`."""
    return {
        "trainer": experience.action_log_probs,
        "rollout": experience.rollout_log_probs,
        "mask": experience.action_mask,
        "advantage": experience.advantages,
    }


def nemo_rl(data: dict[str, np.ndarray]) -> Columns:
    """Padded [batch, sequence] fields by the position of the token itself; a dropped sample has sample_mask 0."""
    return {
        "trainer": data["prev_logprobs"],
        "rollout": data["generation_logprobs"],
        "mask": data["token_mask"] * data["sample_mask"][:, None],
        "advantage": data["advantages"],
    }


def prime_rl(micro_batch: dict[str, Any], logprobs: np.ndarray) -> Columns:
    """Packed [1, tokens] fields, prompts included, with the lengths of the packed samples."""
    return {
        "trainer": logprobs[0],
        "rollout": micro_batch["inference_logprobs"][0],
        "mask": micro_batch["loss_mask"][0],
        "advantage": micro_batch["advantages"][0],
        "offsets": np.cumsum([0, *micro_batch["sequence_lengths"]]),
    }


class Experience:
    """A stand-in with the four fields that the recipe reads."""

    def __init__(self, **fields: np.ndarray) -> None:
        self.__dict__.update(fields)


def main() -> None:
    rng = np.random.default_rng(0)
    prompt, lengths = 3, [5, 2, 4]
    rows = [-rng.exponential(1.0, n) for n in lengths]
    wide = np.zeros((3, prompt + max(lengths)))
    padded = {name: wide.copy() for name in ("rollout", "trainer", "mask", "advantage")}
    for i, row in enumerate(rows):
        at = slice(prompt, prompt + len(row))
        padded["rollout"][i, at], padded["mask"][i, at] = row, 1
        padded["trainer"][i, at] = np.minimum(row + 0.01 * rng.standard_normal(len(row)), 0)
        padded["advantage"][i, at] = i - 1

    def cut(name: str, begin: int) -> list[np.ndarray]:
        return [padded[name][i, begin : prompt + n] for i, n in enumerate(lengths)]

    def packed(name: str) -> np.ndarray:
        return np.concatenate(cut(name, 0))[None]

    names = {"trainer": "log_probs", "rollout": "rollout_log_probs", "mask": "loss_masks", "advantage": "advantages"}
    lists = {theirs: cut(ours, prompt) for ours, theirs in names.items()} | {"response_lengths": lengths}
    actions = {name: column[:, prompt:] for name, column in padded.items()}
    found = {
        "slime": slime(lists),
        "OpenRLHF": openrlhf(
            Experience(
                action_log_probs=actions["trainer"],
                rollout_log_probs=actions["rollout"],
                action_mask=actions["mask"],
                advantages=actions["advantage"],
            )
        ),
        "NeMo-RL": nemo_rl(
            {"prev_logprobs": padded["trainer"], "generation_logprobs": padded["rollout"], "token_mask": padded["mask"]}
            | {"sample_mask": np.ones(3), "advantages": padded["advantage"]}
        ),
        "prime-rl": prime_rl(
            {"inference_logprobs": packed("rollout"), "loss_mask": packed("mask"), "advantages": packed("advantage")}
            | {"sequence_lengths": [prompt + n for n in lengths]},
            packed("trainer"),
        ),
    }
    for framework, columns in found.items():
        with sp.Monitor() as monitor:
            metrics = monitor(step=1, **columns)
        skew = metrics["samepolicy/sign_skew/mean"]
        print(f"{framework:8}: k3 {metrics['samepolicy/k3/mean']:.3e}, sign skew {skew:+.2e}")


if __name__ == "__main__":
    main()
