"""A small NumPy language model over ASCII characters, with switches that make it wrong in known ways.

It is a real autoregressive transformer with random weights: prefill, decode with a key-value cache, one full forward
for scoring. In "bfloat16" every result is rounded to bfloat16, and decoding adds its matrix products up in another
order than scoring does, as real kernels do. Everything runs in about a second without torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal, Self
from zlib import crc32

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.engines import fingerprint
from samepolicy.engines import sampling as arithmetic
from samepolicy.engines.base import Capabilities, Engine, Message, Scores, check_ids, check_prompts
from samepolicy.engines.change import UNCHANGED, Change, Changeable
from samepolicy.engines.layout import PLAIN, Layout, plans
from samepolicy.engines.rollout import Response, as_run
from samepolicy.engines.states import Shaping, States
from samepolicy.engines.toy_model import DTYPES, RANK, Cache, Laid, Model, cast
from samepolicy.errors import InputError
from samepolicy.kinds import choose, require
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling, Side

CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
BOS, EOS = len(CHARACTERS), len(CHARACTERS) + 1
VOCABULARY = len(CHARACTERS) + 2
LIMIT = 2048
"""Longest sequence, in tokens."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Keywords of the toy engine: what it is, then its faults, all off by default.

    Attributes:
        seed: the model; another seed is another model.
        dtype: dtype of the arithmetic, "float32", "bfloat16" or "float16".
        weights_dtype: dtype that the weights are rounded to first; None leaves that to `dtype`.
        temperature: fault: logits are divided by this too, without a word in the declaration.
        shift: fault: log-probs come from this many tokens later (1 is the classic `[m : m+n]` slice), cyclic.
        hide_prompt: fault: response tokens do not attend to the prompt.
        extra_bos: fault: this many more BOS tokens stand before the prompt.
        stale: fault: weights are off by this share of their size, as an older version would be.
        adapter: a low-rank update of this share of the weights' size is a part of the model.
    """

    seed: int = 0
    dtype: str = "float32"
    weights_dtype: str | None = None
    temperature: float = 1.0
    shift: int = 0
    hide_prompt: bool = False
    extra_bos: int = 0
    stale: float = 0.0
    adapter: float = 0.0

    def __post_init__(self) -> None:
        """Refuse numbers that no toy has."""
        checks = {
            "seed must be 0 or more": self.seed >= 0,
            "temperature must lie in (0, inf)": 0 < self.temperature < inf,
            f"extra_bos must lie in [0, {LIMIT}]": 0 <= self.extra_bos <= LIMIT,
            "stale must lie in [0, inf)": 0 <= self.stale < inf,
            "adapter must lie in [0, inf)": 0 <= self.adapter < inf,
        }
        require(self, checks)


def load(path: str = "", **options: Any) -> "Toy":
    """Make a toy model; it has no file, so the path stays empty.

    >>> toy = load(seed=1)
    >>> toy.decode(toy.encode("hello"))
    '<s>hello'
    """
    if path:
        raise InputError(f'The toy engine has no file, but the path is {path!r}; write "toy:" and choose with seed=.')
    return Toy(Options(**options))


class Toy(Engine):
    """The toy language model as an engine."""

    capabilities = Capabilities(
        generate=True, entropy=True, top=True, variants=True, states=True, note="a toy with random weights"
    )

    def __init__(self, options: Options, change: Change = UNCHANGED, *, layout: Layout = PLAIN) -> None:
        """Draw the weights, change them where that is asked for, and round them; `layout` is how `score` lays out."""
        dtypes = tuple(DTYPES)
        choose("dtype", options.dtype, dtypes)
        choose("weights_dtype", options.weights_dtype or options.dtype, dtypes)
        self.options, self._layout = options, layout
        if options.shift:  # this fault lies behind the states
            self.capabilities = replace(self.capabilities, states=False)
        model = _changed(options, change)
        self._model = cast(cast(model, options.weights_dtype or options.dtype), options.dtype)

    def score(
        self,
        prompts: Ragged,
        responses: Ragged,
        *,
        sampling: Sampling = Sampling(),
        entropy: bool = False,
        top: int = 0,
    ) -> Scores:
        """One full forward per sequence; see `Engine.score`."""
        prompts, responses = check_ids(prompts, responses, vocabulary=VOCABULARY, limit=LIMIT)
        if not 0 <= top <= VOCABULARY:
            raise InputError(f"top must lie between 0 and the vocabulary's {VOCABULARY}, but it is {top}.")
        full = self._full(prompts, responses, sampling)
        ids = responses.values.astype(np.int64)
        logp = responses.with_values(full[np.arange(len(ids)), ids])
        best = arithmetic.most_likely(full, top) if top else None
        unknown = np.isnan(full[:, :1])
        return Scores(
            logp=self._shifted(logp),
            entropy=responses.with_values(arithmetic.entropy(full)) if entropy else None,
            top_ids=responses.with_values(np.where(unknown, -1, best[0])) if best else None,
            top_logp=responses.with_values(best[1]) if best else None,
        )

    def describe(self, sampling: Sampling) -> Side:
        """What the toy declares; its faults are not declared."""
        extra = {"vocab_size": VOCABULARY, "weights_dtype": self.options.weights_dtype}
        extra |= {"adapter": f"rank {RANK}"} if self.options.adapter else {}
        return Side(
            engine="toy",
            version="1",
            model=f"toy(seed={self.options.seed})",
            weights=Model.random(VOCABULARY, seed=self.options.seed).fingerprint(),
            tokenizer=fingerprint.text(CHARACTERS),
            dtype=self.options.dtype,
            sampling=sampling,
            extra={name: value for name, value in extra.items() if value is not None},
        )

    def generate(self, prompts: Ragged, sampling: Sampling, *, samples: int = 1) -> Run:
        """Sample token by token with a key-value cache; see `Engine.generate`."""
        prompts = check_prompts(prompts, vocabulary=VOCABULARY, limit=LIMIT - 1, samples=samples)
        responses = [
            self._respond(prompt, sampling, arithmetic.uniforms(sampling.seed, group, sample, sampling.max_tokens))
            for group, prompt in enumerate(prompts)
            for sample in range(samples)
        ]
        return as_run(self, prompts, responses, sampling=sampling, samples=samples)

    def encode(self, prompt: str | Sequence[Message]) -> list[int]:
        """BOS and one id per character; the turns of a conversation are joined by newlines."""
        text = prompt if isinstance(prompt, str) else "\n".join(m["content"] for m in prompt)
        foreign = sorted(set(text) - set(CHARACTERS))
        if foreign:
            raise InputError(
                f"The toy model knows printable ASCII only, but the prompt holds {foreign[0]!r}; leave it out."
            )
        return [BOS, *map(CHARACTERS.index, text)]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The characters, with <s> and </s> for BOS and EOS."""
        names = [*CHARACTERS, "<s>", "</s>"]
        return "".join(names[i] for i in ids)

    def variant(self, *, dtype: str, weights_dtype: str | None = None, change: Change = UNCHANGED) -> Self:
        """The same toy, faults included, with other arithmetic; `Change.weights` is "stale=0.05" or "seed=1" here."""
        return type(self)(replace(self.options, dtype=dtype, weights_dtype=weights_dtype), change, layout=self._layout)

    def states(self, prompts: Ragged, responses: Ragged, *, layout: Layout = PLAIN) -> States:
        """Logits of every response token, the toy's faults included; see `Engine.states`."""
        prompts, responses = check_ids(prompts, responses, vocabulary=VOCABULARY, limit=LIMIT)
        prompts = Ragged.from_lists([self._context(prompt) for prompt in prompts], dtype=np.int64)
        layout = self._layout if layout == PLAIN else layout
        if self.options.hide_prompt:
            layout = replace(layout, hide_prompt=True, keep_last=1)
        full = np.zeros((len(responses.values), VOCABULARY), np.float32)
        read: list[np.ndarray] = [np.zeros(0, np.int64)]
        for plan in plans(prompts, responses, layout):
            read.append(plan.tokens)
            logits = self._model.logits(plan.ids, Cache(), layout=Laid(plan.positions, plan.seen))
            full[plan.tokens] = logits[plan.read] / np.float32(self.options.temperature)
        return States(prompts, responses, VOCABULARY, lambda tokens: full[tokens], np.concatenate(read))

    def check_weights(self, path: str) -> None:
        """Refuse a text that says nothing of weights; see `Engine.check_weights`."""
        _told(self.options, path)

    def changeable(self) -> Changeable:
        """The base of the positions, the norm's epsilon, and the names of the weights."""
        config = {"rope_theta": Model.base, "rms_norm_eps": Model.eps}
        return Changeable(
            config=config, tensors=tuple(self._model.weights), adapter=bool(self.options.adapter), limit=LIMIT
        )

    def _full(self, prompts: Ragged, responses: Ragged, sampling: Sampling) -> np.ndarray:
        """Log-probs over the vocabulary at all response tokens, [tokens, vocab]."""
        if self._layout != PLAIN:
            states = self.states(prompts, responses)
            return np.asarray(states.full(np.arange(len(responses.values)), Shaping(sampling=sampling)))
        rows = [self._row(p, r, sampling) for p, r in zip(prompts, responses, strict=True)]
        return np.concatenate(rows) if rows else np.zeros((0, VOCABULARY), np.float32)

    def _row(self, prompt: np.ndarray, response: np.ndarray, sampling: Sampling) -> np.ndarray:
        """Log-probs over the vocabulary at each response token, [response, vocab]."""
        context = self._context(prompt)
        rows = np.full((len(response), VOCABULARY), np.nan, np.float32)
        known = slice(0 if len(context) else 1, None)
        if len(rows[known]):
            ids = np.concatenate([context, response[:-1]]).astype(np.int64)
            logits = self._model.logits(ids, Cache(), hidden=self._hidden(context))[-len(rows[known]) :]
            seen = arithmetic.first_seen(context, response, VOCABULARY)[None] <= np.arange(len(response))[known, None]
            rows[known] = self._recorded(logits, sampling, seen)
        return rows

    def _respond(self, prompt: np.ndarray, sampling: Sampling, uniform: np.ndarray) -> Response:
        """Decode one response, a token at a time, until EOS, `max_tokens` or the model's limit."""
        context, cache = self._context(prompt), Cache()
        seen = np.isin(np.arange(VOCABULARY), context)[None]
        ids: list[int] = []
        logp: list[float] = []
        new, hidden = context, self._hidden(context)
        for chance in uniform[: LIMIT - len(context)].tolist():
            logits = self._model.logits(new, cache, hidden=hidden)[-1:]
            choice = _choose(arithmetic.processed_log_probs(logits, sampling, seen), chance, sampling)
            logp.append(float(self._recorded(logits, sampling, seen)[0, choice]))
            ids.append(choice)
            seen[0, choice] = True
            new = np.array([choice])
            if choice == EOS:
                break
        shifted = np.roll(np.array(logp, np.float32), -self.options.shift)
        finish: Literal["stop", "length"] = "stop" if ids[-1] == EOS else "length"
        return Response(ids=ids, logp=shifted.tolist(), finish=finish, text=self.decode(ids))

    def _recorded(self, logits: np.ndarray, sampling: Sampling, seen: np.ndarray) -> np.ndarray:
        """The log-probs that this engine reports, its temperature fault included."""
        return np.asarray(arithmetic.log_probs(logits / np.float32(self.options.temperature), sampling, seen))

    def _context(self, prompt: np.ndarray) -> np.ndarray:
        """What stands before the response."""
        return np.concatenate([np.full(self.options.extra_bos, BOS), prompt]).astype(np.int64)

    def _hidden(self, context: np.ndarray) -> int:
        """The position before which response tokens see nothing."""
        return max(len(context) - 1, 0) if self.options.hide_prompt else 0

    def _shifted(self, logp: Ragged) -> Ragged:
        """The log-probs of each response, rolled by the shift fault."""
        return Ragged.from_lists([np.roll(row, -self.options.shift) for row in logp], dtype=np.float32)


def _weights(options: Options) -> Model:
    """The weights of a toy, before any rounding."""
    return Model.random(VOCABULARY, seed=options.seed).disturbed(options.stale)


def _changed(options: Options, change: Change) -> Model:
    """The model that a change makes of the options', before any rounding."""
    model = _weights(options)
    if change.weights is not None:
        model = model.swapped(_weights(_told(options, change.weights)), change.tensors)
    if change.adapter and options.adapter:
        model = model.adapted(options.adapter)
    if change.quantise is not None:
        model = model.quantised(change.quantise)
    noise = np.random.default_rng(crc32(repr(options).encode())) if change.train else None
    names = {"rope_theta": "base", "rms_norm_eps": "eps"}
    fields = {names[choose("config", name, tuple(names))]: value for name, value in change.config}
    return replace(model, noise=noise, **fields)


def _told(options: Options, text: str) -> Options:
    """The options with what a text such as "stale=0.05" says of the weights."""
    name, _, value = text.partition("=")
    kinds = {"seed": int, "stale": float}
    try:
        return replace(options, **{name: kinds[name](value)})
    except (KeyError, ValueError) as error:
        raise InputError(f'Weights of a toy are told as "stale=0.05" or "seed=1", but these are {text!r}.') from error


def _choose(logp: np.ndarray, chance: float, sampling: Sampling) -> int:
    """The most likely id if greedy, else a drawn one."""
    greedy = sampling.temperature == 0
    return int(logp[0].argmax() if greedy else arithmetic.draw(logp, np.array([chance], np.float32))[0])
