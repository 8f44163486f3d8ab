"""What a model folder says beside its weights: sampling settings, end tokens, experts, fingerprint."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from samepolicy.engines import fingerprint
from samepolicy.errors import InputError
from samepolicy.records.side import Sampling

NEUTRAL: dict[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""What leaves a distribution as the model gives it, under the names that a generation config uses."""


def generation_config(path: str) -> dict[str, Any]:
    """The generation_config.json of a local model folder; empty where there is none.

    Raises:
        InputError: the file is not JSON.
    """
    file = Path(path).expanduser() / "generation_config.json"
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}), so its end tokens are not known; save it again.") from error
    return found if isinstance(found, dict) else {}


def reshaping(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of a generation config that would reshape the distribution if they were applied.

    >>> reshaping({"temperature": 0.6, "top_p": 1.0, "eos_token_id": 2})
    {'temperature': 0.6}
    """
    given = {name: config.get(name) for name in NEUTRAL}
    return {name: value for name, value in given.items() if value is not None and value != NEUTRAL[name]}


def end_tokens(config: dict[str, Any]) -> list[int]:
    """The end tokens that a generation config names.

    >>> end_tokens({"eos_token_id": 2}), end_tokens({"eos_token_id": [2, 7]}), end_tokens({})
    ([2], [2, 7], [])
    """
    ends = config.get("eos_token_id")
    return [] if ends is None else [int(end) for end in (ends if isinstance(ends, list) else [ends])]


def experts_in(config: dict[str, Any]) -> int:
    """How many experts a model's config names; 0 for a dense model. Families name the field in their own ways.

    >>> experts_in({"num_experts_per_tok": 2, "n_routed_experts": 64}), experts_in({"hidden_size": 64})
    (64, 0)
    """
    return max((n for key, n in config.items() if "expert" in key and type(n) is int), default=0)


def told_apart(sampling: Sampling) -> dict[str, Any]:
    """Every sampling setting by name, neutral ones too, so that an engine has nothing to fill in by itself."""
    return {name: getattr(sampling, name) for name in NEUTRAL}


def seed_of(sampling: Sampling, group: int, sample: int) -> int:
    """The seed of one response, a 32-bit number; it depends on nothing but the sampler's seed and the two indices.

    >>> seed_of(Sampling(), 0, 0) == seed_of(Sampling(), 0, 0) != seed_of(Sampling(), 0, 1)
    True
    """
    return int(np.random.SeedSequence([sampling.seed, group, sample]).generate_state(1)[0])


def files_fingerprint(path: str, adapter: str | None = None) -> str | None:
    """A hash of the weight files in a local folder, and of the adapter's; None where the folder is not here."""
    return fingerprint.weights(path, None, adapter) if holds_weights(path) else None


def holds_weights(path: str) -> bool:
    """Whether this is a local model folder with weights in it."""
    here = Path(path).expanduser()
    return bool(path) and (here / "config.json").is_file() and any(here.glob("*.safetensors"))
