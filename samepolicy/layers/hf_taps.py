"""Run a transformers model once over given ids, and see, or replace, what it computes at every tap.

Hooks see what modules give; queries, keys and values after rotation are seen where transformers looks its attention
function up. Values are replaced in place, so that whoever holds the tensor (the residual stream) sees the new ones.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from samepolicy.arrays import Array
from samepolicy.engines.hf_network import Network
from samepolicy.errors import InputError
from samepolicy.layers import taps
from samepolicy.layers.structure import Layer, Parts, find

Visit: TypeAlias = Callable[[str, int, Array], Array | None]
"""Called with a tap's name, the place of its first token in the sequence, and its values [tokens, width], which it must
not keep; gives values to put in their place, or None."""

HEAD_TOKENS = 64
"""Tokens whose logits are computed together."""


class Model:
    """A transformers model with its taps.

    Attributes:
        module: the transformers model.
        parts: what its structure is.
        dtype: the dtype it computes in.
    """

    def __init__(self, module: Any) -> None:
        """Find the taps of a causal language model.

        Raises:
            InputError: its structure is not known, its numbers are not plain, or it is compiled.
        """
        from samepolicy.weights.live import check

        if hasattr(module, "_orig_mod"):
            raise InputError(
                "This model is compiled, so nothing inside it can be seen; give the model as it was before."
            )
        for name, parameter in module.named_parameters():
            check(name, parameter)
        self.module = module
        self.parts: Parts = find(module)
        self.dtype = str(next(module.parameters()).dtype).removeprefix("torch.")
        self._network = Network.of(module)

    def run(self, ids: Sequence[int], visit: Visit) -> None:
        """One forward over one sequence, without a cache.

        Args:
            ids: token ids.
            visit: sees every tap in the order of computation.
        """
        self.run_padded([ids], lambda _, tap, place, values: visit(tap, place, values))

    def run_padded(self, rows: Sequence[Sequence[int]], visit: Callable[[int, str, int, Array], Array | None]) -> None:
        """One forward over sequences in one batch, padded on the right.

        Args:
            rows: token ids of each sequence.
            visit: called for each row with its number, then as `Visit`.
        """
        import torch

        width, device = max(map(len, rows)), self.module.device
        ids = torch.zeros(len(rows), width, dtype=torch.int64, device=device)
        attention = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.as_tensor(list(map(int, row)))
            attention[i, : len(row)] = 1
        positions = torch.arange(width, device=device).repeat(len(rows), 1)

        def seen(tap: str, values: Array) -> None:
            whole = values.reshape(len(rows), width, -1)
            for i, row in enumerate(rows):
                new = visit(i, tap, 0, whole[i, : len(row)])
                if new is not None:
                    whole[i, : len(row)] = new.to(values.dtype)

        with torch.inference_mode(), _hooked(self.parts, seen):
            hidden, _ = self._network.forward(ids, attention=attention, positions=positions)
            for i, row in enumerate(rows):
                for place, part in self._logits(hidden[i, : len(row)]):
                    visit(i, taps.LOGITS, place, part)

    def _logits(self, hidden: Array) -> Iterator[tuple[int, Array]]:
        """The head on a few tokens at a time, with the place of the first."""
        for start in range(0, len(hidden), HEAD_TOKENS):
            yield start, self._network.head.logits(hidden[start : start + HEAD_TOKENS])


Seen: TypeAlias = Callable[[str, Array], None]
"""Called with a tap and its values, any shape that ends in the width; may change them in place."""


@contextmanager
def _hooked(parts: Parts, seen: Seen) -> Iterator[None]:
    """See every tap of the body for a while."""
    with ExitStack() as stack:
        for number, layer in enumerate(parts.layers):
            for handle in _layer_hooks(number, layer, seen):
                stack.callback(handle.remove)
        stack.callback(parts.norm.register_forward_hook(_output(taps.FINAL_NORM, seen)).remove)
        stack.enter_context(_attention_seen(parts, seen))
        yield


def _layer_hooks(number: int, layer: Layer, seen: Seen) -> Iterator[Any]:
    """The hooks of one layer; the caller removes them."""

    def tap(part: str) -> str:
        return taps.name(number, part)

    if number == 0:
        yield layer.module.register_forward_pre_hook(_input(taps.EMBEDDING, seen), with_kwargs=True)
    yield layer.attention_norm.register_forward_hook(_output(tap("attention_norm"), seen))
    yield layer.attention_block.register_forward_hook(_output(tap("attention_block"), seen))
    yield layer.mlp_norm.register_forward_pre_hook(_input(tap("middle"), seen), with_kwargs=True)
    yield layer.mlp_norm.register_forward_hook(_output(tap("mlp_norm"), seen))
    if layer.router is not None:
        yield layer.router.register_forward_hook(_routes(number, layer.top_k, seen))
    yield layer.mlp_block.register_forward_hook(_output(tap("mlp"), seen))
    yield layer.module.register_forward_hook(_output(tap("residual"), seen))


def _output(tap: str, seen: Seen) -> Callable[..., None]:
    def hook(module: Any, args: Any, output: Any) -> None:
        del module, args
        seen(tap, output[0] if isinstance(output, tuple) else output)

    return hook


def _input(tap: str, seen: Seen) -> Callable[..., None]:
    def hook(module: Any, args: Any, kwargs: Any) -> None:
        del module
        seen(tap, args[0] if args else kwargs["hidden_states"])

    return hook


def _routes(number: int, top_k: int, seen: Seen) -> Callable[..., None]:
    """Router logits and the experts that were chosen; these are looked at, not replaced."""

    def hook(module: Any, args: Any, output: Any) -> None:
        del module, args
        logits = output[0] if isinstance(output, tuple) else output
        chosen = output[-1] if isinstance(output, tuple) and not output[-1].is_floating_point() else None
        seen(taps.name(number, "router"), logits.clone())
        seen(
            taps.name(number, "experts"), (logits.topk(top_k, -1).indices if chosen is None else chosen).sort(-1).values
        )

    return hook


@contextmanager
def _attention_seen(parts: Parts, seen: Seen) -> Iterator[None]:
    """Put a function around the attention of these layers where transformers looks it up."""
    import sys

    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    known = ALL_ATTENTION_FUNCTIONS

    numbers = {id(layer.attention): number for number, layer in enumerate(parts.layers)}
    config = parts.layers[0].attention.config
    kind = config._attn_implementation
    plain = getattr(sys.modules[type(parts.layers[0].attention).__module__], "eager_attention_forward", None)
    inner = known.get(kind, plain)
    had, before = kind in known._local_mapping, known._local_mapping.get(kind)

    def attention(module: Any, query: Array, key: Array, value: Array, *args: Any, **kwargs: Any) -> Any:
        number = numbers.get(id(module))
        if number is None:
            return inner(module, query, key, value, *args, **kwargs)
        heads = [
            _by_token(part, taps.name(number, name), seen)
            for part, name in zip((query, key, value), "qkv", strict=True)
        ]
        output, *rest = inner(module, *heads, *args, **kwargs)
        flat = output.reshape(*output.shape[:2], -1)
        seen(taps.name(number, "attention"), flat)
        return flat.reshape(output.shape), *rest

    known._local_mapping[kind] = attention
    try:
        yield
    finally:
        if had:
            known._local_mapping[kind] = before
        else:
            del known._local_mapping[kind]


def _by_token(heads: Array, tap: str, seen: Seen) -> Array:
    """Show [batch, heads, tokens, width] as [batch, tokens, heads × width], and give back what it has become."""
    flat = heads.transpose(1, 2).flatten(2).clone()
    seen(tap, flat)
    return flat.unflatten(2, (heads.shape[1], heads.shape[3])).transpose(1, 2)
