"""Record what ms-swift's own correction functions give, for the tests, which cannot install it beside this project.

Run it in an environment of its own, with `ms-swift==4.6.0`, `msgspec` and a CPU build of torch:

    python tests/oracles/record_swift.py tests/oracles/recorded/swift.json
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
THRESHOLDS = (2.0, 1.2, 0.9)
SEEDS = (0, 1, 2)
JUNK = (0.0, 1e10, float("nan"))
DELTAS = (0.0, 0.1)


def light(trainer: Any, mode: str | None = None, threshold: float = 2.0, delta: float | None = None) -> SimpleNamespace:
    """An object with the attributes that the trainer's methods read."""
    found = SimpleNamespace(
        rollout_importance_sampling_mode=mode,
        rollout_importance_sampling_threshold=threshold,
        off_policy_sequence_mask_delta=delta,
    )
    found._compute_sequence_level_ratios = lambda *a: trainer._compute_sequence_level_ratios(found, *a)
    return found


def record() -> dict[str, Any]:
    """Every mode on every batch."""
    import swift
    import torch
    from swift.rlhf_trainers.grpo_trainer import GRPOTrainer

    sys.path.insert(0, str(Path(__file__).parent))
    from correction_batches import correction_batch

    trainer, cases = GRPOTrainer, []
    for seed in SEEDS:
        for junk in JUNK:
            data = {n: torch.from_numpy(x) for n, x in correction_batch(seed, junk=junk).items()}
            mask, log_ratio = data["mask"], data["trainer"] - data["rollout"]
            for mode in MODES:
                for threshold in THRESHOLDS:
                    me = light(trainer, mode, threshold)
                    weights = trainer._apply_rollout_importance_sampling(me, log_ratio, mask)
                    logged = trainer._compute_is_correction_metrics(me, log_ratio, weights, mask)
                    flags = {"mode": mode, "threshold": threshold}
                    cases.append(
                        {"kind": "weights", "seed": seed, "junk": junk, **flags, **plain(weights, mask, logged)}
                    )
            for delta in DELTAS:
                me = light(trainer, delta=delta)
                keep = trainer._compute_off_policy_sequence_mask(
                    me, data["current"], data["rollout"], mask, data["advantage"]
                )
                cases.append({"kind": "mask", "seed": seed, "junk": junk, "delta": delta, "keep": keep.tolist()})
            logged = trainer._compute_rollout_offpolicy_metrics(None, data["trainer"], data["rollout"], mask)
            cases.append({"kind": "metrics", "seed": seed, "junk": junk, "logged": numbers(logged)})
    return {"ms-swift": swift.__version__, "torch": torch.__version__, "cases": cases}


def plain(weights: Any, mask: Any, logged: dict[str, Any]) -> dict[str, Any]:
    """Weights under the mask, row after row, and the logged numbers."""
    return {"weights": weights[mask].tolist(), "logged": numbers(logged)}


def numbers(logged: dict[str, Any]) -> dict[str, float]:
    """Tensors as numbers."""
    return {k: float(v) for k, v in logged.items()}


def main() -> None:
    """Write the recording."""
    Path(sys.argv[1]).write_text(json.dumps(record(), indent=None, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
