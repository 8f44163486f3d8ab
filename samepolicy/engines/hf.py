"""Any transformers causal language model as an engine: it samples with a key-value cache and scores in one forward.

The model folder's generation config is not applied: sampling is what the caller says, and neutral unless told. Values
in it that are not neutral are named in `describe(…).extra`. Only its end tokens are used.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.engines import fingerprint, hf_load
from samepolicy.engines import sampling as arithmetic
from samepolicy.engines.base import Capabilities, Engine, Message, Scores, check_ids, check_prompts
from samepolicy.engines.change import UNCHANGED, Change, Changeable
from samepolicy.engines.folder import end_tokens, experts_in, reshaping
from samepolicy.engines.head import Ask
from samepolicy.engines.hf_change import fields_of
from samepolicy.engines.hf_generate import respond
from samepolicy.engines.hf_network import Network
from samepolicy.engines.hf_options import Options, read
from samepolicy.engines.hf_score import batches, score_all
from samepolicy.engines.hf_states import states_of
from samepolicy.engines.hf_variants import Variants
from samepolicy.engines.layout import PLAIN, Layout
from samepolicy.engines.rollout import Response, as_run
from samepolicy.engines.states import States
from samepolicy.errors import EngineError, InputError
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling, Side


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
    model = read(path, chosen)
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
        self._variants = Variants(path, model, options)

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
            "generation_config_not_applied": reshaping(self.model.generation_config.to_dict()),
            "vocab_size": self._network.vocabulary,
            "eos_ids": sorted(self._stops()),
            "bos_id": getattr(tokenizer, "bos_token_id", None),
            "pad_id": getattr(tokenizer, "pad_token_id", None),
            "experts": experts_in(self.model.config.get_text_config().to_dict()),
        }
        return Side(
            engine="hf",
            version=transformers.__version__,
            model=self.path,
            weights=fingerprint.weights(self.path, self.model, options.adapter),
            tokenizer=None if tokenizer is None else fingerprint.tokenizer(tokenizer),
            template=None if template is None else fingerprint.text(str(template)),
            dtype=hf_load.dtype_name(self.model),
            head_dtype=options.head_dtype,
            sampling=sampling,
            extra={name: value for name, value in extra.items() if value not in (None, {}, [])},
        )

    def generate(self, prompts: Ragged, sampling: Sampling, *, samples: int = 1) -> Run:
        """Sample by prefill and decode; see `Engine.generate`."""
        import torch
        import transformers

        network, count = self._network, sampling.max_tokens
        if not network.decodes:
            raise EngineError(
                f"What {type(self.model).__name__} keeps of earlier tokens is lost when it decodes under transformers "
                f"{transformers.__version__}, so its samples would be wrong; sample with another engine, such as vLLM."
            )
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
        model = self._variants.make(options, change)
        like = self._network if type(model) is type(self.model) else None
        return type(self)(self.path, model, self.tokenizer, options, like)

    def states(self, prompts: Ragged, responses: Ragged, *, layout: Layout = PLAIN) -> States:
        """One forward per batch of like lengths; see `Engine.states`."""
        network = self._network
        prompts, responses = check_ids(prompts, responses, vocabulary=network.vocabulary, limit=network.limit)
        return states_of(network, prompts, responses, layout, batch_tokens=self.options.batch_tokens)

    def check_weights(self, path: str) -> None:
        """Refuse a folder whose config or files are not of this model; see `Engine.check_weights`."""
        self._variants.check_weights(path)

    def changeable(self) -> Changeable:
        """The config's positions and scales, and the names of the weights; see `Engine.changeable`."""
        return Changeable(
            config=fields_of(self.model.config),
            tensors=tuple(self.model.state_dict()),
            adapter=self.options.adapter is not None,
            limit=self._network.limit,
        )

    def _tokenizer(self) -> Any:
        """The tokenizer, or a refusal where the model came without one."""
        if self.tokenizer is None:
            raise EngineError(f"The model {self.path!r} holds no tokenizer; save one beside it, or give token ids.")
        return self.tokenizer

    def _stops(self) -> frozenset[int]:
        """The end tokens: those of the generation config (else of the config) and the tokenizer's."""
        configs = self.model.generation_config, self.model.config.get_text_config()
        ends = next((found for config in configs if (found := end_tokens(config.to_dict()))), [])
        own = getattr(self.tokenizer, "eos_token_id", None)
        return frozenset([*ends, *([] if own is None else [int(own)])])
