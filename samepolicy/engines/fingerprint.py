"""Short hashes that tell whether two sides hold the same weights, tokenizer or chat template."""

import json
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from samepolicy.engines.hf_load import WEIGHT_FILES

LENGTH = 16
"""Hexadecimal digits of a fingerprint."""


def weights(path: str, model: Any, adapter: str | None) -> str:
    """A hash of the weight files (of the parameters where there are no local files), and of the adapter's."""
    here = Path(path).expanduser()
    files = [here] if here.is_file() else sorted(f for pattern in WEIGHT_FILES for f in here.glob(pattern))
    files += sorted(f for pattern in WEIGHT_FILES for f in Path(adapter).glob(pattern)) if adapter else []
    if not files:
        return _parameters(model)
    parts = [_file(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return parts[0][:LENGTH] if len(parts) == 1 else text("".join(parts))


def tokenizer(given: Any) -> str:
    """A hash of vocabulary, merges and rules; of the vocabulary alone where the tokenizer is no fast one."""
    fast = getattr(given, "backend_tokenizer", None)
    if fast is None:
        return text(json.dumps(sorted(given.get_vocab().items())))
    state = json.loads(fast.to_str())
    return text(json.dumps({k: v for k, v in state.items() if k not in ("truncation", "padding")}))


def text(given: str) -> str:
    """A hash of a text.

    >>> text("a")
    'ca978112ca1bbdca'
    """
    return sha256(given.encode()).hexdigest()[:LENGTH]


@lru_cache(maxsize=256)
def _file(path: str, size: int, changed: int) -> str:
    """The SHA-256 of a file, read once for each size and time of change."""
    del size, changed
    digest = sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _parameters(model: Any) -> str:
    """A hash of the parameters' bytes, in order of name."""
    import torch

    digest = sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:LENGTH]
