"""A transformers model as two parts, body and head, so that the head can run on the tokens that matter only."""

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from samepolicy.arrays import Array
from samepolicy.engines.head import Head
from samepolicy.errors import EngineError

CACHES = ("past_key_values", "cache", "cache_params")
"""What models of transformers' versions call the cache that `forward` takes and gives back."""


@dataclass(frozen=True)
class Network:
    """A model split into body and head.

    Attributes:
        model: the transformers model.
        head: from what `forward` gives to logits.
        split: True where `forward` runs the body only; False where the head could not be taken apart, so that it gives
            the model's own logits and costs their memory.
        vocabulary: ids the model has.
        limit: longest sequence; None where the config names none.
    """

    model: Any
    head: Head
    split: bool
    vocabulary: int
    limit: int | None

    @classmethod
    def of(cls, model: Any, *, head_dtype: str | None = None, like: Self | None = None) -> Self:
        """Split a model, and check on a few tokens that head(body(ids)) gives the model's own logits.

        Args:
            model: the transformers model.
            head_dtype: dtype that the head runs in; None is the model's.
            like: a network of the same class that was checked already, so that this one need not be.
        """
        import torch

        split, vocabulary = (like.split, like.vocabulary) if like else _checked(model)
        if head_dtype and not split:
            raise EngineError(
                "The head of this model cannot be taken apart, so it cannot run in another dtype; leave head_dtype out."
            )
        head = Head.of(model) if split else Head(torch.nn.Identity())
        limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        return cls(model, head.cast(head_dtype) if head_dtype else head, split, vocabulary, limit)

    def forward(self, ids: Array, *, attention: Array, positions: Array, cache: Any = None, keep: bool = False) -> Any:
        """Run the body (the whole model where it does not split).

        Args:
            ids: int64 [batch, new].
            attention: 1 where there is a token, int64 [batch, past + new].
            positions: index of each new token in its own sequence, int64 [batch, new].
            cache: what an earlier call with `keep` gave.
            keep: keep a key-value cache for the tokens to come.

        Returns:
            What the head takes, [batch, new, width], and the cache.

        Raises:
            EngineError: a cache is asked for, and the model takes none.
        """
        run = self.model.base_model if self.split else self.model
        takes = inspect.signature(run.forward).parameters
        name = next((one for one in CACHES if one in takes), "")
        if keep and not name:
            raise EngineError(f"A {type(self.model).__name__} takes no cache, so it can score but not sample.")
        given = {"input_ids": ids, "attention_mask": attention, "position_ids": positions, name: cache}
        out = run(**{n: v for n, v in given.items() if n in takes and v is not None}, use_cache=keep)
        return out[0], getattr(out, name) if keep else None

    @cached_property
    def decodes(self) -> bool:
        """Whether a token behind a cache is predicted as in one forward of all, and not as if it stood alone."""
        import torch

        ids = torch.arange(1, 9, device=self.model.device)[None] % self.vocabulary
        seen, place = torch.ones_like(ids), torch.arange(8, device=ids.device)[None]
        with torch.inference_mode():
            _, cache = self.forward(ids[:, :-1], attention=seen[:, :-1], positions=place[:, :-1], keep=True)
            behind, _ = self.forward(ids[:, -1:], attention=seen, positions=place[:, -1:], cache=cache, keep=True)
            whole, _ = self.forward(ids, attention=seen, positions=place)
            alone, _ = self.forward(ids[:, -1:], attention=seen[:, -1:], positions=place[:, -1:])
        error, distance = ((one[0, -1] - whole[0, -1]).float().norm() for one in (behind, alone))
        return not bool(error > (distance / 2).clamp(min=1e-3 * whole[0, -1].float().norm()))


def _checked(model: Any) -> tuple[bool, int]:
    """Whether the head can be taken apart, and how many ids there are, from a forward of a few tokens."""
    import torch

    rows = model.get_input_embeddings().weight.shape[0]
    ids = torch.arange(1, 9, device=model.device)[None] % rows
    with torch.inference_mode():
        own = model(input_ids=ids, use_cache=False).logits[0]
        return _splits(model, ids, own), own.shape[-1]


def _splits(model: Any, ids: Array, own: Array) -> bool:
    """Whether head(body(ids)) equals the model's own logits to within rounding."""
    import torch

    if model.get_output_embeddings() is None or model.base_model is model:
        return False
    ours = Head.of(model).logits(model.base_model(input_ids=ids, use_cache=False)[0][0])
    if ours.shape != own.shape:
        return False
    slack = 8 * torch.finfo(own.dtype).eps * own.abs().max().clamp(min=1).float()
    return bool(((ours - own.float()).abs() <= slack).all())
