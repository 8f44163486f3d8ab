"""A running server as an engine, by token ids: vLLM's, SGLang's, llama.cpp's; by text where a server knows no ids.

Every sampling setting is said in every request, so that the server's own defaults have no say. Two small probes tell
what no flag tells: whether the server records raw or processed log-probs, and whether its defaults would have reshaped
the distribution for a client that leaves them out. Only vLLM's server is tested for real; SGLang's and llama.cpp's
dialects are unverified against the real servers.

Any other server with OpenAI's completions is asked whether it takes and gives token ids. One that gives text alone
needs the model's tokenizer, which makes ids of it again; the tokens rung says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.engines import fingerprint, hf_load
from samepolicy.engines import server_probe as probe
from samepolicy.engines.base import Capabilities, Engine, Message, Scores, check_ids, check_prompts
from samepolicy.engines.folder import files_fingerprint, generation_config, holds_weights, reshaping, seed_of
from samepolicy.engines.rollout import Response, as_run
from samepolicy.engines.server_client import Client, Patience, imported
from samepolicy.engines.server_dialects import DIALECTS, Dialect, VLLMServer, as_scores
from samepolicy.engines.server_fields import LARGEST_ID, encoded, no_halves
from samepolicy.engines.server_journal import Call
from samepolicy.engines.server_spelling import Spelling
from samepolicy.engines.server_text import TextServer, connect, noted
from samepolicy.engines.text import decode, encode, turns
from samepolicy.engines.vllm_load import refuse_old
from samepolicy.errors import EngineError, InputError
from samepolicy.kinds import choose
from samepolicy.records.declared import effective
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling, Side


@dataclass(frozen=True, kw_only=True)
class Options:
    """Keywords of the server engine.

    Attributes:
        server: what it is, "vllm", "sglang", "llamacpp", or "openai" for any other with OpenAI's completions; "auto"
            asks it.
        served_model: the model's name at the server; None takes the first that it lists.
        dtype: what the server computes in, as a declaration: no server tells.
        tokenizer: folder or hub name of its tokenizer; None asks the server, or takes the model's folder if it is here.
        by_text: send and read text even if the server knows token ids.
        concurrency: requests in flight.
        retries: further tries of a request that met a busy server or a lost connection.
        timeout: longest wait for one answer, seconds.
        journal: a file that keeps every answer, so that an interrupted run goes on where it stopped.
    """

    server: str = "auto"
    served_model: str | None = None
    dtype: str | None = None
    tokenizer: str | None = None
    by_text: bool = False
    concurrency: int = 16
    retries: int = 5
    timeout: float = 600.0
    journal: str | None = None

    def __post_init__(self) -> None:
        """Refuse a server that is not known."""
        choose("server", self.server, ("auto", *DIALECTS, probe.PLAIN))


def load(path: str, **options: Any) -> "Server":
    """Talk to a running server.

    Args:
        path: its address, such as "http://localhost:8000".
        **options: see `Options`.

    Raises:
        InputError: no address, or no model of that name.
        EngineError: no server answers there, or it is too old.
        MissingDependencyError: httpx is not installed.
    """
    chosen = Options(**options)
    patience = Patience(concurrency=chosen.concurrency, retries=chosen.retries, timeout=chosen.timeout)
    client = Client(path, patience, chosen.journal)
    found = probe.find(client, chosen.server, chosen.served_model)
    client.journal.server = str(found)  # what another server said is not taken for this one's word
    return Server(client, found, chosen)


installed = imported
"""Refuses where httpx is not installed."""


class NoTokenizerError(EngineError):
    """Only the model's tokenizer helps, and none was named or found."""


class Server(Engine):
    """A server as an engine."""

    def __init__(self, client: Client, found: probe.Found, options: Options) -> None:
        """Wrap a server that was found to answer."""
        if found.kind == "vllm" and found.version:
            refuse_old(found.version)
        self.client = client
        self.found = found
        self.options = options
        self.dialect = self._dialect()
        scores, by_id = self.dialect.scores, not isinstance(self.dialect, TextServer)
        note = "" if scores else "it samples, but gives no log-probs of given ids"
        self.capabilities = Capabilities(generate=True, score=scores, top=scores and by_id, note=note)

    def score(
        self,
        prompts: Ragged,
        responses: Ragged,
        *,
        sampling: Sampling = Sampling(),
        entropy: bool = False,
        top: int = 0,
    ) -> Scores:
        """One request per sequence; see `Engine.score`.

        Under settings that reshape the log-probs each token is a request of its own, which only vLLM's server takes.
        """
        if entropy:
            raise EngineError("A server gives no entropy over the vocabulary; score without it, or with the hf engine.")
        prompts, responses = self._checked(prompts, responses)
        asked = effective(sampling)
        if asked != Sampling():
            if top:
                raise EngineError("A server lists its most likely tokens under raw log-probs only; score without top=.")
            return Scores(logp=self._stepwise(prompts, responses, asked))
        pairs = list(zip(prompts, responses, strict=True))
        sent = [(p.tolist(), r.tolist()) for p, r in pairs if _asked(p, r)]
        calls = [self.dialect.score(p, r, model=self.found.model, top=top) for p, r in sent]
        readers = [partial(self.dialect.scored, prompt=p, response=r, top=top) for p, r in sent]
        lines = iter(self.client.post_all(calls, readers))
        return as_scores(responses, [next(lines) if _asked(p, r) else None for p, r in pairs], top)

    def describe(self, sampling: Sampling) -> Side:
        """What this side declares; see `Engine.describe`."""
        folder, tokenizer = self.found.folder or "", self.tokenizer
        extra = {
            "address": self.client.url,
            "served_model": self.found.model,
            "logprobs_mode": self.mode,
            "server_defaults": self.defaults,
            "generation_config": reshaping(generation_config(folder)) if holds_weights(folder) else None,
            "concurrency": self.options.concurrency,
            "answers_from_journal": self.client.journal.taken,
            "dtype_declared_by": "the user" if self.options.dtype else None,
            "by_text": {"sent": self.dialect.sent} if isinstance(self.dialect, TextServer) else None,
        }
        return Side(
            engine=self.found.kind,
            version=self.found.version,
            model=self.found.folder or self.found.model,
            weights=files_fingerprint(folder),
            tokenizer=None if tokenizer is None else fingerprint.tokenizer(tokenizer),
            template=self._template(),
            dtype=self.options.dtype,
            sampling=sampling,
            extra={name: value for name, value in extra.items() if value},
        )

    def generate(self, prompts: Ragged, sampling: Sampling, *, samples: int = 1) -> Run:
        """One request per response, `concurrency` of them at a time; see `Engine.generate`."""
        limit = None if self.found.limit is None else self.found.limit - 1
        prompts = check_prompts(prompts, vocabulary=self._vocabulary, limit=limit, samples=samples)
        probe.refuse_mode(self.mode, sampling)
        calls = [
            self._sample(prompt.tolist(), sampling, seed_of(sampling, group, sample))
            for group, prompt in enumerate(prompts)
            for sample in range(samples)
        ]
        responses = [self._told(r) for r in self.client.post_all(calls, [self.dialect.sampled] * len(calls))]
        run = as_run(self, prompts, responses, sampling=sampling, samples=samples)
        return noted(run, self.dialect, responses) if isinstance(self.dialect, TextServer) else run

    def encode(self, prompt: str | Sequence[Message]) -> list[int]:
        """Prompt ids, by the server's own tokenizer and chat template where it gives them."""
        if self.options.tokenizer is None and self.found.kind == "vllm" and not self.options.by_text:
            call = Call(
                "/tokenize", {"model": self.found.model, "messages": turns(prompt), "add_generation_prompt": True}
            )
            try:
                return self.client.ask(call, encoded)
            except InputError:
                if not isinstance(prompt, str):
                    raise
                return self.client.ask(Call("/tokenize", {"model": self.found.model, "prompt": prompt}), encoded)
        return encode(self._tokenizer(), prompt)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of the ids."""
        if self.tokenizer is None and self.found.kind == "vllm":
            body = {"model": self.found.model, "tokens": list(map(int, ids))}
            return self.client.ask(Call("/detokenize", body), lambda reply: no_halves(str(reply["prompt"])))
        return decode(self._tokenizer(), ids)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer that was named, or that of the served model's folder where it is on this machine, or None."""
        path = self.options.tokenizer or (self.found.folder if holds_weights(self.found.folder or "") else None)
        return None if path is None else hf_load.read_tokenizer(path, trust_remote_code=False)

    @cached_property
    def mode(self) -> str:
        """What this server's log-probs are, found by asking: see `server_probe.mode`."""
        return probe.mode(self.client, self.dialect, self.found)

    @cached_property
    def defaults(self) -> str:
        """Whether a client that says nothing gets the model's own distribution: see `server_probe.defaults`."""
        return probe.defaults(self.client, self.dialect, self.found)

    def _dialect(self) -> Dialect:
        """How it is spoken to: by token ids unless it knows none, or text is asked for."""
        kind, by_text = self.found.kind, self.options.by_text
        if kind in DIALECTS and not by_text:
            return DIALECTS[kind]
        if not by_text and probe.gives_ids(self.client, DIALECTS["vllm"], self.found):
            return DIALECTS["vllm"]
        if self.tokenizer is None:
            raise NoTokenizerError(
                f"{self.client.url} gives text and no token ids, and only the model's tokenizer makes ids of it; name "
                "its folder with tokenizer=PATH, or --rollout-tokenizer PATH."
            )
        return connect(self.client, self.found.model, Spelling(self.tokenizer), by_text=by_text)

    def _template(self) -> str | None:
        """The fingerprint of the tokenizer's chat template, if the server renders a conversation the same way.

        Where it does not, what it renders is hashed instead, so that the declarations of two sides differ.
        """
        template = None if self.tokenizer is None else getattr(self.tokenizer, "chat_template", None)
        if template is None:
            return None
        chat = [{"role": "user", "content": "Which template is this?"}]
        rendered, ours = self.encode(chat), encode(self.tokenizer, chat)
        return fingerprint.text(str(template) if rendered == ours else str(rendered))

    @property
    def _vocabulary(self) -> int:
        """Ids that the model may have; the server refuses those that it lacks."""
        return LARGEST_ID if self.tokenizer is None else max(len(self.tokenizer), self.tokenizer.vocab_size)

    def _tokenizer(self) -> Any:
        """The tokenizer, or a refusal where there is none."""
        if self.tokenizer is None:
            raise NoTokenizerError(
                f"The server {self.client.url} gives no tokenizer; name it with tokenizer=PATH, or --rollout-tokenizer "
                "PATH."
            )
        return self.tokenizer

    def _checked(self, prompts: Ragged, responses: Ragged) -> tuple[Ragged, Ragged]:
        """Ids that may be sent."""
        limit = None if self.found.limit is None else self.found.limit - 1
        return check_ids(prompts, responses, vocabulary=self._vocabulary, limit=limit)

    def _sample(self, prompt: list[int], sampling: Sampling, seed: int) -> Call:
        """Ask for one response, no longer than there is room."""
        room = sampling.max_tokens if self.found.limit is None else self.found.limit - len(prompt)
        most = min(sampling.max_tokens, room)
        return self.dialect.sample(prompt, sampling, model=self.found.model, seed=seed, most=most)

    def _told(self, response: Response) -> Response:
        """A response with the text of its ids, where there is a tokenizer here."""
        return response if self.tokenizer is None else replace(response, text=self.decode(response.ids))

    def _stepwise(self, prompts: Ragged, responses: Ragged, sampling: Sampling) -> Ragged:
        """The processed log-prob of each response token, a request each."""
        probe.refuse_mode(self.mode, sampling)
        if not isinstance(self.dialect, VLLMServer):
            raise EngineError(f"The {self.found.kind} server cannot score under these settings; score raw log-probs.")
        calls, tokens, places = [], [], []
        for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
            whole = [*prompt.tolist(), *response.tolist()]
            for at in range(max(len(prompt), 1), len(whole)):
                calls.append(self.dialect.next(whole[:at], whole[at], sampling, model=self.found.model))
                tokens.append(whole[at])
                places.append(int(responses.offsets[row]) + at - len(prompt))
        logp = np.full(len(responses.values), np.nan, np.float32)
        logp[places] = self.client.post_all(calls, [partial(self.dialect.read_next, token=t) for t in tokens])
        return responses.with_values(logp)


def _asked(prompt: np.ndarray, response: np.ndarray) -> bool:
    """Whether any token of the response is predicted by something."""
    return len(response) > 0 and len(prompt) + len(response) > 1
