"""Any transformers causal language model as an engine: it samples with a key-value cache and scores in one forward.

The model folder's generation config is not applied: sampling is what the caller says, and neutral unless told. Values
in it that are not neutral are named in `describe(…).extra`. Only its end tokens are used.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.engines import hf_load
from samepolicy.engines import sampling as arithmetic
from samepolicy.engines.base import Capabilities, Engine, Message, Scores, check_ids, check_prompts, choose
from samepolicy.engines.change import UNCHANGED, Change, Changeable
from samepolicy.engines.head import Ask
from samepolicy.engines.hf_change import changed, fields_of
from samepolicy.engines.hf_generate import respond
from samepolicy.engines.hf_network import Network
from samepolicy.engines.hf_score import batches, score_all
from samepolicy.engines.hf_states import states_of
from samepolicy.engines.layout import PLAIN, Layout
from samepolicy.engines.rollout import Response, as_run
from samepolicy.engines.states import States
from samepolicy.errors import EngineError, InputError
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling, Side


@dataclass(frozen=True, kw_only=True)
class Options:
    """Keywords of the hf engine.

    Attributes:
        dtype: dtype of weights and arithmetic; "auto" is that of the files (float32 for GGUF).
        weights_dtype: dtype that the weights are rounded to first, before they are cast to `dtype`.
        device: where it runs, such as "cpu" or "cuda:0"; "auto" is the accelerator if there is one.
        attention: attention implementation, such as "sdpa" or "eager"; None leaves it to transformers.
        adapter: folder of a LoRA adapter.
        head_dtype: dtype of the output head; None is `dtype`.
        batch_tokens: tokens of a batch, padding included.
        trust_remote_code: run code that comes with the model.
    """

    dtype: str = "auto"
    weights_dtype: str | None = None
    device: str = "auto"
    attention: str | None = None
    adapter: str | None = None
    head_dtype: str | None = None
    batch_tokens: int = 4096
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        """Refuse dtypes and sizes that do not exist."""
        choose("dtype", self.dtype, ("auto", *hf_load.DTYPES))
        for name in ("weights_dtype", "head_dtype"):
            choose(name, getattr(self, name) or "float32", hf_load.DTYPES)
        if self.batch_tokens < 1:
            raise InputError(f"batch_tokens must be 1 or more, but it is {self.batch_tokens}.")


def load(path: str, **options: Any) -> "HuggingFace":
    """Load a transformers model.

    Args:
        path: a model folder, a .gguf file, or a hub name.
        **options: see `Options`.

    Raises:
        InputError: no such path, or not a model.
        EngineError: the files cannot be loaded.
        MissingDependencyError: torch or transformers is not installed.
    """
    chosen = Options(**options)
    model = _read(path, chosen)
    return HuggingFace(path, model, hf_load.read_tokenizer(path, trust_remote_code=chosen.trust_remote_code), chosen)


class HuggingFace(Engine):
    """A transformers model as an engine.

    The first token after an empty prompt is predicted by nothing, so its log-prob is NaN; the rest is scored.
    """

    capabilities = Capabilities(generate=True, entropy=True, top=True, variants=True, states=True)

    def __init__(self, path: str, model: Any, tokenizer: Any, options: Options, like: Network | None = None) -> None:
        """Wrap a model that is loaded already; `path` says where `variant` and fingerprints find its files."""
        self.path = path
        self.tokenizer = tokenizer
        self.options = options
        self._network = Network.of(model, head_dtype=options.head_dtype, like=like)
        self._last: dict[str, tuple[Any, Any]] = {}

    @property
    def model(self) -> Any:
        """The transformers model itself."""
        return self._network.model

    def score(
        self,
        prompts: Ragged,
        responses: Ragged,
        *,
        sampling: Sampling = Sampling(),
        entropy: bool = False,
        top: int = 0,
    ) -> Scores:
        """One teacher-forced forward per batch of like lengths; see `Engine.score`."""
        network = self._network
        prompts, responses = check_ids(prompts, responses, vocabulary=network.vocabulary, limit=network.limit)
        if not 0 <= top <= network.vocabulary:
            raise InputError(f"top must lie between 0 and the vocabulary's {network.vocabulary}, but it is {top}.")
        ask = Ask(sampling, entropy, top)
        return score_all(network, prompts, responses, ask, batch_tokens=self.options.batch_tokens)

    def describe(self, sampling: Sampling) -> Side:
        """What this side declares; see `Engine.describe`."""
        import torch
        import transformers

        tokenizer, options = self.tokenizer, self.options
        template = getattr(tokenizer, "chat_template", None)
        extra = {
            "torch": torch.__version__,
            "device": str(self.model.device),
            "attention": self.model.config._attn_implementation,
            "weights_dtype": options.weights_dtype,
            "adapter": options.adapter,
            "generation_config_not_applied": _not_neutral(self.model.generation_config),
            "vocab_size": self._network.vocabulary,
            "eos_ids": sorted(self._stops()),
            "bos_id": getattr(tokenizer, "bos_token_id", None),
            "pad_id": getattr(tokenizer, "pad_token_id", None),
        }
        return Side(
            engine="hf",
            version=transformers.__version__,
            model=self.path,
            weights=hf_load.weights_fingerprint(self.path, self.model, options.adapter),
            tokenizer=None if tokenizer is None else hf_load.tokenizer_fingerprint(tokenizer),
            template=None if template is None else hf_load.text_fingerprint(str(template)),
            dtype=_name(self.model.dtype),
            head_dtype=options.head_dtype,
            sampling=sampling,
            extra={name: value for name, value in extra.items() if value not in (None, {}, [])},
        )

    def generate(self, prompts: Ragged, sampling: Sampling, *, samples: int = 1) -> Run:
        """Sample by prefill and decode; see `Engine.generate`."""
        import torch

        network, count = self._network, sampling.max_tokens
        limit = None if network.limit is None else network.limit - 1
        prompts = check_prompts(prompts, vocabulary=network.vocabulary, limit=limit, samples=samples)
        found: dict[int, Response] = {}
        for rows in batches(np.repeat(prompts.lengths, samples) + count, self.options.batch_tokens):
            chances = [arithmetic.uniforms(sampling.seed, r // samples, r % samples, count) for r in rows]
            with torch.inference_mode():
                batch = respond(
                    network, [prompts[r // samples] for r in rows], chances, sampling=sampling, stops=self._stops()
                )
            found.update(zip(rows, batch, strict=True))
        ordered = [found[row] for row in range(len(found))]
        if self.tokenizer is not None:
            ordered = [replace(response, text=self.decode(response.ids)) for response in ordered]
        return as_run(self, prompts, ordered, sampling=sampling, samples=samples)

    def encode(self, prompt: str | Sequence[Message]) -> list[int]:
        """Prompt ids; a text is the user's message where the tokenizer has a chat template, plain text elsewhere."""
        tokenizer = self._tokenizer()
        if isinstance(prompt, str) and not tokenizer.chat_template:
            return list(tokenizer(prompt)["input_ids"])
        if not tokenizer.chat_template:
            raise EngineError("This model has no chat template, so a conversation cannot be encoded; give plain text.")
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        return list(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of the ids, special tokens included."""
        return str(self._tokenizer().decode(list(map(int, ids))))

    def variant(self, *, dtype: str, weights_dtype: str | None = None, change: Change = UNCHANGED) -> Self:
        """The same model with other arithmetic, as `load` would give it with these two dtypes.

        A copy of this one's weights, or the files again where these weights are rounded already to something else.
        In "float32" and "float64" the head follows, whatever `head_dtype` is. `Change` says what else can be changed.
        """
        wide = dtype in ("float32", "float64")
        head_dtype = None if wide else self.options.head_dtype
        options = replace(self.options, dtype=dtype, weights_dtype=weights_dtype, head_dtype=head_dtype)
        if change.config and change.adapter and self.options.adapter:
            raise EngineError("Config fields can be changed only where the adapter is merged into the weights.")
        if change != UNCHANGED and change.same_weights:
            plain = self._held(
                "plain", (dtype, weights_dtype), lambda: self.variant(dtype=dtype, weights_dtype=weights_dtype).model
            )
            model = changed(plain if change.config else copy.deepcopy(plain), change)
            return self._varied(model, options)
        if change != UNCHANGED:
            model = changed(self._exact(change), change, self._other(change.weights))
            for step in (weights_dtype or dtype, dtype):
                hf_load.cast(model, step)
            return self._varied(model, options)
        if self._rounded not in ("float32", weights_dtype or dtype):
            return self._varied(_read(self.path, options), options)
        model = copy.deepcopy(self.model)
        for step in (weights_dtype or dtype, dtype):
            hf_load.cast(model, step)
        return self._varied(model, options)

    def _varied(self, model: Any, options: Options) -> Self:
        """This engine with another model of the same kind."""
        like = self._network if type(model) is type(self.model) else None
        return type(self)(self.path, model, self.tokenizer, options, like)

    def states(self, prompts: Ragged, responses: Ragged, *, layout: Layout = PLAIN) -> States:
        """One forward per batch of like lengths; see `Engine.states`."""
        network = self._network
        prompts, responses = check_ids(prompts, responses, vocabulary=network.vocabulary, limit=network.limit)
        return states_of(network, prompts, responses, layout, batch_tokens=self.options.batch_tokens)

    def check_weights(self, path: str) -> None:
        """Refuse a folder whose config or files are not of this model; see `Engine.check_weights`."""
        hf_load.check_files(path, self.model.config, trust_remote_code=self.options.trust_remote_code)

    def changeable(self) -> Changeable:
        """The config's positions and scales, and the names of the weights; see `Engine.changeable`."""
        return Changeable(
            config=fields_of(self.model.config),
            tensors=tuple(self.model.state_dict()),
            adapter=self.options.adapter is not None,
            limit=self._network.limit,
        )

    def _exact(self, change: Change) -> Any:
        """A model to change: a copy of this one, or of its files where these weights are rounded or adapted."""
        plain = change.adapter or self.options.adapter is None
        if self._rounded == "float32" and plain:
            return copy.deepcopy(self.model)
        kept = self.options.adapter if change.adapter else None
        options = replace(self.options, dtype="auto", weights_dtype=None, adapter=kept)
        return copy.deepcopy(self._held("exact", (self.path, kept), lambda: _read(self.path, options)))

    def _other(self, path: str | None) -> Any:
        """The model that weights are taken from."""
        if path is None:
            return None
        return self._held("other", path, lambda: self._read_other(path))

    def _read_other(self, path: str) -> Any:
        """The same, checked and read."""
        self.check_weights(path)
        trust = self.options.trust_remote_code
        return hf_load.read_model(path, dtype="auto", attention=None, trust_remote_code=trust)

    def _held(self, what: str, key: Any, read: Callable[[], Any]) -> Any:
        """What was read last of a kind, for changes that come in series; read now if it is another."""
        if self._last.get(what, (None, None))[0] != key:
            self._last.pop(what, None)
            self._last[what] = key, read()
        return self._last[what][1]

    @property
    def _rounded(self) -> str:
        """The dtype that the weights in hand are rounded to."""
        return self.options.weights_dtype or _name(self.model.dtype)

    def _tokenizer(self) -> Any:
        """The tokenizer, or a refusal where the model came without one."""
        if self.tokenizer is None:
            raise EngineError(f"The model {self.path!r} holds no tokenizer; save one beside it, or give token ids.")
        return self.tokenizer

    def _stops(self) -> frozenset[int]:
        """The end tokens: those of the generation config (else of the config) and the tokenizer's."""
        ends = self.model.generation_config.eos_token_id
        ends = self.model.config.get_text_config().eos_token_id if ends is None else ends
        listed = [*(ends if isinstance(ends, list) else [ends]), getattr(self.tokenizer, "eos_token_id", None)]
        return frozenset(int(end) for end in listed if end is not None)


def _read(path: str, options: Options) -> Any:
    """The model on its device, with its adapter, rounded to `weights_dtype` and cast to `dtype`."""
    model = hf_load.read_model(
        path,
        dtype=options.weights_dtype or options.dtype,
        attention=options.attention,
        trust_remote_code=options.trust_remote_code,
    )
    if options.adapter:
        hf_load.add_adapter(model, options.adapter, dtype=options.weights_dtype or _name(model.dtype))
    if options.weights_dtype and options.dtype != "auto":
        hf_load.cast(model, options.dtype)
    return hf_load.to_device(model, options.device)


def _name(dtype: Any) -> str:
    """A torch dtype's name without its module."""
    return str(dtype).removeprefix("torch.")


def _not_neutral(config: Any) -> dict[str, Any]:
    """The sampling settings of a generation config that would reshape the distribution if they were applied."""
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    given = {name: getattr(config, name, None) for name in neutral}
    return {name: value for name, value in given.items() if value is not None and value != neutral[name]}
