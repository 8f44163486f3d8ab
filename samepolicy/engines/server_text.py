"""The dialect of servers that give text and no token ids: OpenAI's /v1/completions with `logprobs`, and no more.

Prompts go as ids where the server reads them so, else as text; ids of the response are made again from the text of each
token (see `server_spelling`). What that leaves unsure is counted and kept in the run's rollout side as `by_text`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.engines.folder import told_apart
from samepolicy.engines.rollout import Response
from samepolicy.engines.server_client import Client
from samepolicy.engines.server_dialects import Dialect, Line
from samepolicy.engines.server_fields import as_response, first_in, list_in, no_halves, number_of, same_length
from samepolicy.engines.server_journal import Call, Json
from samepolicy.engines.server_reply import brief
from samepolicy.engines.server_spelling import Spelling
from samepolicy.errors import EngineError, InputError
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

PROBE = "The capital of France is"
"""A prompt after which every model has something to say."""


@dataclass(frozen=True, kw_only=True)
class Read(Response):
    """A response whose ids were made again.

    Attributes:
        guessed: ids that an encoding of the text had to decide.
        cut: it ends before a token whose id nothing decides.
        other: its ids are not those of the text that the server gave.
        prompt: tokens of the prompt as the server counted them; None where it does not tell.
    """

    guessed: int
    cut: bool
    other: bool
    prompt: int | None


@dataclass(frozen=True, kw_only=True)
class TextServer(Dialect):
    """A server's /v1/completions, by text.

    Attributes:
        spelling: of the model's tokenizer.
        by_id: prompts go as ids, though only text comes back.
        wide: it takes settings that OpenAI's own server has not: top-k, min-p and the repetition penalty.
        echoes: it gives the log-probs of a prompt.
    """

    name = "openai"
    spelling: Spelling
    by_id: bool
    wide: bool
    echoes: bool = False

    @property
    def scores(self) -> bool:
        """Whether it gives the log-probs of given text."""
        return self.echoes

    @property
    def prompt(self) -> Sequence[int]:
        """See `Dialect.prompt`."""
        return self.spelling.encode(PROBE)

    @property
    def sent(self) -> str:
        """What prompts go as, "ids" or "text"."""
        return "ids" if self.by_id else "text"

    def sample(self, ids: Sequence[int], sampling: Sampling | None, *, model: str, seed: int, most: int) -> Call:
        """See `Dialect.sample`."""
        body = {"model": model, "prompt": self._prompt(ids), "max_tokens": most, "seed": seed, "logprobs": 1}
        return Call("/v1/completions", body if sampling is None else {**body, **self._told(sampling)})

    def sampled(self, reply: Json) -> Read:
        """See `Dialect.sampled`."""
        choice = first_in(reply, "choices")
        pieces, logp = _tokens(choice)
        text = no_halves(choice["text"]) if isinstance(choice.get("text"), str) else None
        made = self.spelling.ids(pieces, text)
        kept = len(made.ids)
        cut = kept < len(pieces)
        found = as_response(made.ids, logp[:kept], choice.get("finish_reason") == "stop" and not cut, text)
        other = text is not None and not cut and text.strip() not in self._spelt(made.ids)
        return Read(**vars(found), guessed=made.guessed, cut=cut, other=other, prompt=_prompt_tokens(reply))

    def score(self, prompt: Sequence[int], response: Sequence[int], *, model: str, top: int) -> Call:
        """See `Dialect.score`."""
        if top:
            raise EngineError("A server that gives text alone lists no ids of likely tokens; score without top=.")
        body = {"model": model, "prompt": self._prompt([*prompt, *response]), "max_tokens": 1, "echo": True}
        return Call("/v1/completions", {**body, "logprobs": 1, "temperature": 1.0})

    def scored(self, reply: Json, prompt: Sequence[int], response: Sequence[int], top: int) -> Line:
        """Read them; NaN from the first token on that the server reads, or echoes, otherwise."""
        pieces, logp = _tokens(first_in(reply, "choices"))
        whole = [*prompt, *response]
        if self.by_id:
            same_length(logp[: len(whole)], whole, "echoed log-probs")
            same = self.spelling.fitting(pieces, whole)
        else:
            same = _agreeing(self.spelling.ids(pieces[: len(whole)]).ids, whole)
        known = [number_of(value) for value in logp[:same]] + [float("nan")] * (len(whole) - same)
        return Line(logp=known[len(prompt) :], top=[])

    def reads(self, ids: Sequence[int], counted: int | None) -> bool:
        """Whether the server, by its tokenizer and its own count, reads a prompt as these ids."""
        exact = self.by_id or self.spelling.encode(self.spelling.text(ids)) == list(ids)
        return exact and counted in (None, len(ids))

    def _prompt(self, ids: Sequence[int]) -> str | list[int]:
        """A prompt as it is sent."""
        return list(ids) if self.by_id else self.spelling.text(ids)

    def _told(self, sampling: Sampling) -> dict[str, Any]:
        """Every setting that the server takes."""
        own = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        lacking = [name for name in sampling.changed if name not in own]
        if lacking and not self.wide:
            raise InputError(
                f"The server takes temperature and top_p alone, but {', '.join(lacking)} is asked for; leave it out."
            )
        wide = {**told_apart(sampling), "skip_special_tokens": False} if self.wide else {}
        return {**own, **wide, "presence_penalty": 0.0, "frequency_penalty": 0.0}

    def _spelt(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The texts that a server may give of ids: all, without the end token, without special tokens."""
        plain = [token for token in ids if token not in self.spelling.special]
        return tuple(self.spelling.spell(part).strip() for part in (ids, ids[:-1], plain))


def connect(client: Client, model: str, spelling: Spelling, *, by_text: bool) -> TextServer:
    """Find out how a server is spoken to that gives text alone, by asking for one token.

    Args:
        client: its address.
        model: the model's name.
        spelling: of the model's tokenizer.
        by_text: send text even if it takes ids.

    Raises:
        InputError: it refuses whatever it is sent.
        EngineError: no log-probs, or tokens that the tokenizer has not.
    """
    prompt = spelling.encode(PROBE)
    trouble: EngineError | InputError = EngineError("")
    for by_id, wide in [(by_id, wide) for by_id in ([False] if by_text else [True, False]) for wide in (True, False)]:
        one = TextServer(spelling=spelling, by_id=by_id, wide=wide)
        call = one.sample(prompt, Sampling(temperature=0), model=model, seed=0, most=1)
        try:
            answer = client.ask(call, one.sampled)
        except (InputError, EngineError) as error:
            trouble = error
            continue
        if by_id and answer.prompt != len(prompt):
            continue
        if answer.cut:
            raise EngineError(
                f"{client.url} gives a token that the tokenizer has not; name the model's own with tokenizer=PATH."
            )
        return replace(one, echoes=_echoes(client, one, prompt, model))
    raise trouble


def noted(run: Run, one: TextServer, responses: Sequence[Response]) -> Run:
    """The run with what is unsure about its ids in its rollout side, under `by_text`.

    Args:
        run: what was sampled.
        one: the dialect.
        responses: as they came.
    """
    read = [r for r in responses if isinstance(r, Read)]
    prompts = run["prompt_ids"]
    assert isinstance(prompts, Ragged)
    found = {
        "sent": one.sent,
        "responses": len(read),
        "tokens": sum(len(r.ids) for r in read),
        "guessed": sum(r.guessed for r in read),
        "cut": sum(r.cut for r in read),
        "other": sum(r.other for r in read),
        "misread": sum(not one.reads(p.tolist(), r.prompt) for p, r in zip(prompts, read, strict=True)),
    }
    return replace(run, rollout=replace(run.rollout, extra={**run.rollout.extra, "by_text": found}))


def _echoes(client: Client, one: TextServer, prompt: list[int], model: str) -> bool:
    """Whether a server gives the log-probs of a prompt."""
    half = len(prompt) // 2
    try:
        call = one.score(prompt[:half], prompt[half:], model=model, top=0)
        line = client.ask(call, partial(one.scored, prompt=prompt[:half], response=prompt[half:], top=0))
    except (InputError, EngineError):
        return False
    return bool(np.isfinite(line.logp).all() and np.any(line.logp))  # some fill in zeros


def _tokens(choice: Json) -> tuple[list[str], list[Any]]:
    """The text and the log-prob of each token in an answer."""
    told = choice.get("logprobs") or {}
    pieces = list_in(told, "tokens", "start the server with log-probs allowed")
    logp = list_in(told, "token_logprobs", "start the server with log-probs allowed")
    same_length(logp, pieces, "log-probs")
    wrong = [piece for piece in pieces if not isinstance(piece, str)]
    if wrong:
        raise EngineError(f"The server gave the token {brief(repr(wrong[0]))}, which is no text; see its log.")
    return [no_halves(piece) for piece in pieces], logp


def _prompt_tokens(reply: Json) -> int | None:
    """Tokens of the prompt as the server counted them."""
    usage = reply.get("usage")
    counted = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return counted if isinstance(counted, int) and not isinstance(counted, bool) else None


def _agreeing(ids: Sequence[int], wanted: Sequence[int]) -> int:
    """How many ids at the beginning are the same.

    >>> _agreeing([1, 2, 9], [1, 2, 3, 4])
    2
    """
    return next((at for at, (a, b) in enumerate(zip(ids, wanted, strict=False)) if a != b), min(len(ids), len(wanted)))
