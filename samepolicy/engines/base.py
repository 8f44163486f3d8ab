"""What an engine is, and how one is made from a line such as "hf:PATH".

An engine scores token ids: the log-prob of every response token given its prompt and the response before it. That is
the one thing it must do; whatever else it can do stands in its `capabilities`. A new kind of engine is one new module
in this folder with a frozen dataclass `Options` (its keywords) and a function `load(path, **options)`.
"""

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import numpy as np

from samepolicy import engines
from samepolicy.arrays import Ragged
from samepolicy.engines.change import UNCHANGED, Change, Changeable
from samepolicy.engines.layout import PLAIN, Layout
from samepolicy.errors import EngineError, InputError, ShapeError
from samepolicy.kinds import plain
from samepolicy.records.side import Sampling, Side

if TYPE_CHECKING:
    from samepolicy.engines.states import States
    from samepolicy.records.run import Run

Message: TypeAlias = Mapping[str, str]
"""One turn of a conversation: {"role": "user", "content": "…"}."""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What an engine can do.

    Attributes:
        generate: it samples responses and records their log-probs (`generate`, `encode`, `decode`).
        score: it gives the log-probs of ids that are handed to it.
        entropy: scoring can add the entropy of every token's distribution.
        top: scoring can add the k most likely tokens.
        variants: it can give the same model with other arithmetic (`variant`).
        states: it can lay sequences out in any way and keep what its body computes (`states`), and its variants can
            be changed in more than arithmetic.
        note: a limit worth knowing, in a sentence.
    """

    generate: bool = False
    score: bool = True
    entropy: bool = False
    top: bool = False
    variants: bool = False
    states: bool = False
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What an engine says about response tokens, all under one distribution (the `sampling` that was asked for).

    Attributes:
        logp: log-prob of each response token, nats, float32 [tokens]; NaN where the engine cannot say (the first
            token after an empty prompt), -inf for a token outside the kept set.
        entropy: entropy of the distribution the token was drawn from, nats, float32 [tokens], if asked for.
        top_ids: the k most likely ids, most likely first, int64 [tokens, k], if asked for; -1 where `logp` is NaN.
        top_logp: their log-probs, float32 [tokens, k], if asked for.
    """

    logp: Ragged
    entropy: Ragged | None = None
    top_ids: Ragged | None = None
    top_logp: Ragged | None = None

    def __str__(self) -> str:
        """Counts, the mean log-prob, and what else is there."""
        values = self.logp.values
        known = values[np.isfinite(values)]
        mean = f"{known.mean():.4f}" if len(known) else "none"
        also = [n for n in ("entropy", "top_ids") if getattr(self, n) is not None]
        extra = f", with {' and '.join(also)}" if also else ""
        return f"{len(self.logp)} responses, {len(values)} tokens, mean log-prob {mean} nats{extra}"


class Engine(Protocol):
    """A model that gives log-probs. Inherit, say your `capabilities`, and write `score` and `describe`."""

    capabilities: Capabilities

    def score(
        self,
        prompts: Ragged,
        responses: Ragged,
        *,
        sampling: Sampling = Sampling(),
        entropy: bool = False,
        top: int = 0,
    ) -> Scores:
        """Give the log-prob of every response token, log π(y_t | prompt, y_<t).

        Args:
            prompts: token ids of the prompts, one row per response.
            responses: token ids of the responses.
            sampling: the distribution meant; `logprobs="raw"` is the model's own, "processed" the one after
                temperature, penalty, top-k, top-p and min-p. At temperature 0 (greedy) it is that of temperature 1.
            entropy: add each token's entropy.
            top: add the `top` most likely tokens; 0 adds none.

        Returns:
            One row per response and one value per response token, nats.

        Raises:
            InputError: ids outside the vocabulary, or a sequence that is too long for the model.
        """
        ...

    def describe(self, sampling: Sampling) -> Side:
        """Say what this side declares: engine, version, model, fingerprints, dtype, and the sampling."""
        ...

    def generate(self, prompts: Ragged, sampling: Sampling, *, samples: int = 1) -> "Run":
        """Sample `samples` responses to each prompt, with the log-prob of every sampled token."""
        raise _cannot(self, "generate", "sample with another engine and score with this one")

    def encode(self, prompt: str | Sequence[Message]) -> list[int]:
        """Turn a user message or a conversation into prompt ids, with the chat template where there is one."""
        raise _cannot(self, "encode text", "give it token ids")

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Turn ids into text."""
        raise _cannot(self, "decode ids", "decode them with the model's tokenizer")

    def variant(self, *, dtype: str, weights_dtype: str | None = None, change: Change = UNCHANGED) -> Self:
        """Give the same model with other arithmetic: weights rounded to `weights_dtype`, then cast to `dtype`.

        With a `change` it is another model: other weights, other config fields, no adapter.
        """
        raise _cannot(self, "change its arithmetic", "load it again with another dtype")

    def states(self, prompts: Ragged, responses: Ragged, *, layout: Layout = PLAIN) -> "States":
        """Run the body once, laid out in this way, and keep what predicts every response token.

        Raises:
            InputError: ids outside the vocabulary, or a sequence that is too long for the model.
        """
        raise _cannot(self, "keep its states", "use an hf engine as the trainer")

    def check_weights(self, path: str) -> None:
        """Refuse weights that a `Change` of this model cannot take, before any of them is read.

        Raises:
            InputError: they are not there, or of another model.
            EngineError: their files are damaged.
        """
        del path

    def changeable(self) -> Changeable:
        """What a `Change` of this model can name; nothing unless the engine says more."""
        return Changeable()


def engine(spec: str, **options: Any) -> Engine:
    """Make an engine from "kind:path" and the kind's own options.

    Args:
        spec: kind and path, such as "hf:PATH" (a folder, a .gguf file, or a hub name) or "toy:"; the address of a
            server, such as "http://localhost:8000", is a spec as it stands.
        **options: keywords of that kind, such as `dtype="bfloat16"`; see the kind's `Options`.

    Returns:
        The engine, loaded.

    Raises:
        InputError: no kind in the spec, an unknown kind, or an unknown option; the message lists the valid ones.
        EngineError: the model cannot be loaded.

    >>> engine("toy:", dtype="bfloat16").describe(Sampling()).dtype
    'bfloat16'
    """
    kind, path = split(spec)
    valid = options_of(kind)
    unknown = sorted(set(options) - set(valid))
    if unknown:
        raise InputError(f"The {kind} engine has no option {', '.join(unknown)}; its options are {', '.join(valid)}.")
    loaded: Engine = _module(kind).load(path, **plain(options, _module(kind).Options))
    return loaded


def check_engine(name: str, given: object) -> None:
    """Refuse what was given as the trainer or the rollout, if it is no engine."""
    if isinstance(given, type) or not isinstance(getattr(given, "capabilities", None), Capabilities):
        what = "a class" if isinstance(given, type) else type(given).__name__
        raise InputError(f'An engine is wanted as the {name}, and this is {what}; make it with sp.engine("hf:PATH").')


def split(spec: str) -> tuple[str, str]:
    """Kind and path of a spec.

    Raises:
        InputError: there is no kind in it.

    >>> split("hf:some/folder"), split("http://localhost:8000")
    (('hf', 'some/folder'), ('server', 'http://localhost:8000'))
    """
    if not isinstance(spec, str):
        raise InputError(f'An engine is told as text, such as "hf:PATH", and this is {type(spec).__name__}.')
    kind, colon, path = spec.partition(":")
    if not colon:
        raise InputError(
            f'An engine is written kind:path, but {spec!r} has no kind; write "hf:{spec}" for a model. '
            f"The kinds are {', '.join(kinds())}."
        )
    return ("server", spec) if kind in ("http", "https") else (kind, path)


def kinds() -> tuple[str, ...]:
    """The kinds of engine there are: the modules of this package that have a `load`.

    >>> kinds()
    ('hf', 'server', 'toy', 'vllm')
    """
    names = sorted(m.name for m in pkgutil.iter_modules(engines.__path__))
    return tuple(n for n in names if hasattr(importlib.import_module(f"{engines.__name__}.{n}"), "load"))


def options_of(kind: str) -> tuple[str, ...]:
    """The option names that a kind of engine takes."""
    return tuple(f.name for f in fields(_module(kind).Options))


def check_ids(prompts: Ragged, responses: Ragged, *, vocabulary: int, limit: int | None) -> tuple[Ragged, Ragged]:
    """Refuse ids outside the vocabulary, sequences longer than the model takes, and rows that do not pair up.

    Args:
        prompts: token ids, one row per response.
        responses: token ids.
        vocabulary: number of ids the model has.
        limit: longest sequence in tokens; None if there is no limit.

    Returns:
        Prompts and responses, int64.

    Raises:
        ShapeError: another number of prompts than of responses.
        InputError: a wrong id or a sequence too long, named by its index.
    """
    if len(prompts) != len(responses):
        raise ShapeError(
            f"There are {len(prompts)} prompts but {len(responses)} responses; give one prompt per response."
        )
    for what, part in (("prompt", prompts), ("response", responses)):
        if len(part.values) and part.values.dtype.kind not in "iu":
            raise InputError(
                f"The {what} ids are {part.values.dtype}, but token ids are integers; pass the ids as sampled."
            )
        outside = np.flatnonzero((part.values < 0) | (part.values >= vocabulary))
        if len(outside):
            row = int(np.searchsorted(part.offsets, outside[0], side="right")) - 1
            raise InputError(
                f"The {what} of sequence {row} holds id {part.values[outside[0]]}, but the model's ids run from 0 to "
                f"{vocabulary - 1}: score with the model and tokenizer that made these ids."
            )
    lengths = prompts.lengths + responses.lengths
    if limit is not None and len(lengths) and lengths.max() > limit:
        row = int(lengths.argmax())
        raise InputError(
            f"Sequence {row} has {lengths[row]} tokens, but the model takes {limit} at most: "
            "leave it out, or use a model with a longer context."
        )
    return prompts.with_values(prompts.values.astype(np.int64)), responses.with_values(
        responses.values.astype(np.int64)
    )


def check_prompts(prompts: Ragged, *, vocabulary: int, limit: int | None, samples: int) -> Ragged:
    """Refuse prompts that nothing can be sampled after (empty, too long, wrong ids); give the rest back as int64."""
    if not isinstance(samples, int | np.integer) or samples < 1:
        raise InputError(f"samples must be a whole number, 1 or more, but it is {samples}.")
    empty = np.flatnonzero(prompts.lengths == 0)
    if len(empty):
        raise InputError(f"Prompt {empty[0]} has no tokens, so nothing predicts a first one; give at least the BOS id.")
    nothing = Ragged(prompts.values[:0], np.zeros(len(prompts) + 1, dtype=np.int64))
    return check_ids(prompts, nothing, vocabulary=vocabulary, limit=limit)[0]


def _module(kind: str) -> ModuleType:
    """The module of a kind of engine."""
    if kind not in kinds():
        raise InputError(
            f'There is no {kind!r} engine; the kinds are {", ".join(kinds())}, as in "hf:PATH"; a server is http://HOST:PORT.'
        )
    return importlib.import_module(f"{engines.__name__}.{kind}")


def _cannot(one: Engine, what: str, instead: str) -> EngineError:
    """The refusal of something that an engine's capabilities do not hold."""
    return EngineError(f"This engine ({type(one).__name__}) cannot {what}: {instead}.")
