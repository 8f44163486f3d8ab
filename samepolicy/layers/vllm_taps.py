"""Run given ids through a vLLM in this process, and copy what it computes at every tap.

vLLM packs the tokens of all sequences into one list, cuts prompts as its scheduler likes, pads, and adds the residual
inside its norms, in place. Here every forward's tokens are put back to (sequence, position) by their ids and positions,
every value is copied when it is seen, and forwards over other tokens (profiling, warm-up, padding) are left alone.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from samepolicy.arrays import Array, Ragged
from samepolicy.engines import vllm_load
from samepolicy.errors import EngineError, InputError
from samepolicy.layers import taps
from samepolicy.layers.capture import Capture
from samepolicy.layers.placing import Placing
from samepolicy.layers.structure import Parts, find
from samepolicy.weights.files import refuse_quantised
from samepolicy.weights.live import check, module_of

HEAD_TOKENS = 64
"""Tokens whose logits are computed together."""


class Rollout:
    """A vLLM in this process with its taps.

    Attributes:
        llm: the `vllm.LLM`.
        module: its torch module.
        parts: what its structure is.
        dtype: the dtype it computes in.
    """

    def __init__(self, llm: Any) -> None:
        """Find the taps of a loaded vLLM.

        Args:
            llm: a `vllm.LLM`, or an engine that holds one.

        Raises:
            InputError: it runs in another process, in parallel, compiled or quantised, or its structure is not known.
        """
        self.llm = getattr(llm, "llm", llm)
        config = self.llm.llm_engine.vllm_config
        _refuse(config)
        self.module = module_of(self.llm)
        for name, parameter in self.module.named_parameters():
            check(name, parameter)
        refuse_quantised("This vLLM", [name for name, _ in self.module.named_parameters()])
        self.parts: Parts = find(self.module)
        self.dtype = str(config.model_config.dtype).removeprefix("torch.")
        self.limit = int(config.model_config.max_model_len)
        self.vocabulary = int(config.model_config.get_vocab_size())

    def capture(
        self,
        ids: Ragged,
        *,
        alone: bool = False,
        decode_from: int = 0,
        folder: Any = None,
        put: tuple[str, Capture] | None = None,
    ) -> Capture:
        """Copy every tap over all tokens.

        Args:
            ids: token ids, one row per sequence.
            alone: hand the sequences over one at a time, another batch shape.
            decode_from: compute so many tokens of each sequence as its prompt and the others one at a time with the
                key-value cache, forced to these ids; 0 computes all of them as the prompt.
            folder: where to keep it.
            put: a tap, and the capture whose values take the place of vLLM's own there.

        Raises:
            InputError: a sequence that is too long.
            EngineError: vLLM did not compute what it was asked for.
        """
        if ids.lengths.max() > self.limit - 1:
            raise InputError(
                f"A sequence has {ids.lengths.max()} tokens, but this vLLM takes {self.limit - 1}; raise max_model_len."
            )
        kept = Capture.new(ids, label="vLLM", layers=len(self.parts.layers), folder=folder)
        if decode_from:
            kept.prefilled = tuple(int(min(decode_from, length)) for length in ids.lengths)
        placing = Placing(ids)
        groups = [[row] for row in range(len(ids))] if alone or decode_from else [list(range(len(ids)))]
        with _hooked(self.module, self.parts, placing, kept, put):
            for group in groups:
                placing.allowed = set(group)
                self._generate([ids[row] for row in group], decode_from)
        placing.refuse_missing()
        self._logits(kept)
        return kept

    def _generate(self, rows: Sequence[np.ndarray], decode_from: int) -> None:
        """Run the sequences; where some tokens are to be decoded, let the sampler find these alone."""
        import vllm

        def params(count: int) -> Any:
            extra = {"skip_reading_prefix_cache": True}
            return vllm.SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False, **extra)

        cut = [len(row) if not decode_from else min(decode_from, len(row)) for row in rows]
        prompts = [{"prompt_token_ids": row[:stop].tolist()} for row, stop in zip(rows, cut, strict=True)]
        asked = [params(len(row) - stop + 1) for row, stop in zip(rows, cut, strict=True)]
        with vllm_load.quiet(), _forced(self.module, rows[0][cut[0] :] if decode_from else rows[0][:0]):
            try:
                self.llm.generate(prompts, asked, use_tqdm=False)
            except EngineError:
                raise
            except Exception as error:
                raise EngineError(f"vLLM failed ({vllm_load.first_line(error)}); load it again and retry.") from error

    def _logits(self, kept: Capture) -> None:
        """The engine's own head over the final norm, a few tokens at a time; the sampler asks it for few of them."""
        import torch

        with torch.inference_mode():
            for start in range(0, kept.tokens, HEAD_TOKENS):
                hidden = kept.read(taps.FINAL_NORM, start, min(start + HEAD_TOKENS, kept.tokens))
                logits = self.module.compute_logits(hidden)
                kept.write(taps.LOGITS, start, logits[:, : self.vocabulary].float())


def _refuse(config: Any) -> None:
    """Refuse what hooks cannot see."""
    parallel, model = config.parallel_config, config.model_config
    shards = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    if shards > 1:
        raise InputError(
            f"This vLLM shares its layers between {shards} processes; only one process with tensor_parallel_size=1 can "
            "be looked into."
        )
    if not model.enforce_eager:
        raise InputError(
            "This vLLM runs compiled graphs, inside which nothing can be seen; load it with enforce_eager=True."
        )
    if model.quantization is not None:
        raise InputError(
            f"This vLLM is quantised ({model.quantization}), so it computes another function than the trainer by "
            "design; compare the model that it was made from."
        )


@contextmanager
def _hooked(
    module: Any, parts: Parts, placing: Placing, kept: Capture, put: tuple[str, Capture] | None
) -> Iterator[None]:
    """Copy every tap of the body for a while, and put other values in at one of them."""

    def seen(tap: str, values: Array) -> None:
        flat = values.reshape(values.shape[0], -1)
        for place, target, count in placing.pieces:
            if put is not None and put[0] == tap:
                flat[place : place + count] = put[1].read(tap, target, target + count).to(flat)
            kept.write(tap, target, flat[place : place + count])

    def begin(_: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        positions = kwargs.get("positions", args[1] if len(args) > 1 else None)
        if ids is None or positions is None or positions.ndim != 1:
            placing.pieces = []
            return
        placing.begin(ids.cpu().numpy(), positions.cpu().numpy())

    with ExitStack() as stack:
        stack.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
        for handle in _taps(parts, seen):
            stack.callback(handle.remove)
        yield


def _taps(parts: Parts, seen: Callable[[str, Array], None]) -> Iterator[Any]:
    """The hooks of all taps; the caller removes them. A norm also says what the stream before it was."""
    last = len(parts.layers) - 1
    for number, layer in enumerate(parts.layers):
        before = taps.EMBEDDING if number == 0 else taps.name(number - 1, "residual")
        yield layer.attention_norm.register_forward_hook(_norm(taps.name(number, "attention_norm"), before, seen))
        yield _attention_core(layer.attention).register_forward_pre_hook(_heads(number, seen), with_kwargs=True)
        yield _attention_core(layer.attention).register_forward_hook(_output(taps.name(number, "attention"), seen))
        yield layer.attention_block.register_forward_hook(_output(taps.name(number, "attention_block"), seen))
        yield layer.mlp_norm.register_forward_hook(
            _norm(taps.name(number, "mlp_norm"), taps.name(number, "middle"), seen)
        )
        if layer.router is not None:
            yield layer.router.register_forward_hook(_routes(number, layer.top_k, seen))
        yield layer.mlp_block.register_forward_hook(_output(taps.name(number, "mlp"), seen))
    yield parts.norm.register_forward_hook(_norm(taps.FINAL_NORM, taps.name(last, "residual"), seen))


def _attention_core(attention: Any) -> Any:
    """The part of an attention that takes rotated queries, keys and values."""
    core = getattr(attention, "attn", None)
    if core is None:
        raise InputError(
            f"{type(attention).__name__} of this vLLM has no part that takes queries, keys and values, so its layers "
            "cannot be compared."
        )
    return core


def _norm(tap: str, stream: str, seen: Callable[[str, Array], None]) -> Callable[..., None]:
    """A norm: its output, and the stream that it was taken of."""

    def hook(module: Any, args: Any, output: Any) -> None:
        del module
        if isinstance(output, tuple):
            seen(stream, output[1])
            seen(tap, output[0])
        else:
            seen(stream, args[0])
            seen(tap, output)

    return hook


def _output(tap: str, seen: Callable[[str, Array], None]) -> Callable[..., None]:
    def hook(module: Any, args: Any, output: Any) -> None:
        del module, args
        seen(tap, output[0] if isinstance(output, tuple) else output)

    return hook


def _heads(number: int, seen: Callable[[str, Array], None]) -> Callable[..., None]:
    def hook(module: Any, args: Any, kwargs: Any) -> None:
        del module
        names = ("query", "key", "value")
        for place, part in enumerate("qkv"):
            seen(taps.name(number, part), args[place] if len(args) > place else kwargs[names[place]])

    return hook


def _routes(number: int, top_k: int, seen: Callable[[str, Array], None]) -> Callable[..., None]:
    """Router logits, and the experts that they choose."""

    def hook(module: Any, args: Any, output: Any) -> None:
        del module, args
        logits = output[0] if isinstance(output, tuple) else output
        seen(taps.name(number, "router"), logits)
        seen(taps.name(number, "experts"), logits.topk(top_k, -1).indices.sort(-1).values)

    return hook


@contextmanager
def _forced(module: Any, ids: np.ndarray) -> Iterator[None]:
    """Let the sampler see logits that leave it no choice but these ids, one a step; none leaves it free."""
    if not len(ids):
        yield
        return
    coming = iter(ids.tolist())

    def hook(_: Any, args: Any, output: Array) -> Array | None:
        del args
        wanted = next(coming, None)
        if wanted is None or output is None:
            return None
        forced = output.new_full(output.shape, -1e9)
        forced[:, wanted] = 0
        return forced

    handle = module.logits_processor.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
