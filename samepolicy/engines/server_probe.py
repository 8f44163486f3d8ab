"""What a server is, and what its log-probs mean: found by asking it, not by reading its flags."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from samepolicy.engines.rollout import Response
from samepolicy.engines.server_client import Client
from samepolicy.engines.server_dialects import Dialect
from samepolicy.engines.server_reply import brief, read_answer
from samepolicy.errors import EngineError, InputError
from samepolicy.records.declared import effective
from samepolicy.records.side import Sampling

PLAIN = "openai"
"""A server with OpenAI's completions that tells no more about itself."""

MOST = 32
"""Tokens that the defaults are judged by."""

LONGEST_NAME = 1000
"""Letters of a model's name or folder at most."""

LONGEST_PART = 255
"""Bytes of one part of a path at most; the file system takes no longer ones."""

TINY = 1e-4
"""A top-p that leaves one token."""

TOLD = (
    ("vllm", "/version", "version"),
    ("sglang", "/server_info", "version"),
    ("sglang", "/get_server_info", "version"),
    ("llamacpp", "/props", "default_generation_settings"),
)
"""Where each kind of server tells about itself, and a field that this answer holds."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a server says about itself.

    Attributes:
        kind: "vllm", "sglang", "llamacpp" or "openai".
        version: its version; None where it does not tell.
        model: the model's name in requests.
        folder: where the server read the model from; None where it does not tell.
        limit: longest sequence in tokens; None where it does not tell.
    """

    kind: str
    version: str | None
    model: str
    folder: str | None
    limit: int | None


def find(client: Client, kind: str, model: str | None) -> Found:
    """Find out what answers at an address, and which model it serves.

    Args:
        client: the address.
        kind: what it is, or "auto".
        model: the model's name; None takes the first that the server lists.

    Raises:
        InputError: the server lists no model of that name.
        EngineError: nothing answers, or nothing that is known.
    """
    asked = [(name, path) for name, path, _ in TOLD if kind in ("auto", name)]
    found = next((told for told in map(partial(_about, client), asked) if told[1]), None)
    if found is None and kind == "auto" and not client.get("/v1/models"):
        raise EngineError(
            f"{client.url} is neither vLLM, SGLang nor llama.cpp as far as it tells, and lists no models as OpenAI's "
            "does; see that this is its address, and name it with server=."
        )
    name, about = found or (PLAIN if kind == "auto" else kind, {})
    return read_answer(lambda about: _listed(client, name, about, model), about)


def gives_ids(client: Client, dialect: Dialect, found: Found) -> bool:
    """Whether a server that does not say what it is takes and gives token ids in this dialect."""
    try:
        return bool(_ask(client, dialect, found, Sampling(), most=1).ids)
    except (InputError, EngineError):
        return False


def mode(client: Client, dialect: Dialect, found: Found) -> str:
    """What a server's log-probs are of.

    The most likely token alone is kept (a tiny top-p: SGLang takes top-k 1 for greedy, and then leaves the temperature
    out) at two temperatures. Its log-prob is 0 twice if all settings went in ("processed"), moves with the temperature
    if only that did ("temperature"), and else stays put ("raw").
    """
    answers = [_ask(client, dialect, found, Sampling(top_p=TINY, temperature=t), most=1) for t in (1.0, 2.0)]
    if any(not answer.logp for answer in answers):
        raise EngineError(f"{client.url} answers without a token, so nothing can be compared; see its log.")
    at = [answer.logp[0] for answer in answers]
    if not np.isfinite(at).all():
        raise EngineError(f"{client.url} gives log-probs that are no numbers ({at}); see its log.")
    if max(map(abs, at)) < 1e-4:
        return "processed"
    return "temperature" if abs(at[0] - at[1]) > 0.1 else "raw"


def defaults(client: Client, dialect: Dialect, found: Found) -> str:
    """Whether a client that leaves the sampling settings out gets the model's own distribution.

    One seed is sampled with every setting said, twice, and with none: other ids or log-probs mean that the server fills
    in settings of its own.
    """
    told, again, left = (_ask(client, dialect, found, s, most=MOST) for s in (Sampling(), Sampling(), None))
    if not _same(told, again):
        return "not known: the same seed gives other tokens"
    return "neutral" if _same(told, left) else "not neutral: where a client says nothing, the server reshapes"


def refuse_mode(mode: str, sampling: Sampling) -> None:
    """Refuse a sampling whose recorded log-probs this server does not give.

    Args:
        mode: what the server's log-probs are of.
        sampling: what is asked for.

    Raises:
        InputError: the server would record something else than the run declares.

    >>> refuse_mode("raw", Sampling(temperature=0.7, logprobs="raw"))
    """
    reshaped = effective(Sampling(**{**vars(sampling), "logprobs": "processed"}))
    if reshaped == Sampling() or sampling.logprobs == mode:
        return
    if mode == "temperature" and sampling.logprobs == "processed" and set(reshaped.changed) == {"temperature"}:
        return
    wanted = sampling.logprobs
    fix = f"start vLLM with --logprobs-mode {wanted}_logprobs, or ask for logprobs={mode}"
    if mode == "temperature":
        fix = (
            "set the temperature alone, or start SGLang with SGLANG_RETURN_ORIGINAL_LOGPROB=1 and ask for logprobs=raw"
        )
    raise InputError(
        f"The server records {mode} log-probs, but under these settings {wanted} ones are asked for, so the run would "
        f"declare what it does not hold; {fix}."
    )


def _about(client: Client, place: tuple[str, str]) -> tuple[str, dict[str, Any]]:
    """A kind of server, and what it tells at its place; nothing where another one answers."""
    kind, path = place
    about = client.get(path)
    field = next(field for name, at, field in TOLD if (name, at) == place)
    return kind, about if isinstance(about, dict) and field in about else {}


def _listed(client: Client, kind: str, about: dict[str, Any], model: str | None) -> Found:
    """The model that is served."""
    listed = client.get("/v1/models")
    told = listed.get("data") if isinstance(listed, dict) else None
    entries = [e for e in told if isinstance(e, dict) and _name(e.get("id"))] if isinstance(told, list) else []
    names = [entry["id"] for entry in entries]
    if model is not None and names and model not in names:
        raise InputError(f"{client.url} serves no model {model!r}; it serves {brief(', '.join(names))}.")
    if not names and model is None and kind in ("vllm", PLAIN):
        raise EngineError(f"{client.url} lists no model; name it with served_model=.")
    served = [e for e in entries if e.get("id") == (model or names[0])]
    entry = served[0] if served else {}
    version = _name(about.get("version")) or _name(about.get("build_info"))
    folder = _name(about.get("model_path")) or _name(entry.get("root"))  # the root of SGLang's list is the served name
    slot = about.get("default_generation_settings") or {}
    limit = entry.get("max_model_len") or about.get("context_length") or slot.get("n_ctx")
    return Found(
        kind=kind,
        version=version,
        model=model or (names[0] if names else ""),
        folder=folder,
        limit=None if limit is None else _length(limit),
    )


def _name(value: Any) -> str | None:
    """A text that can be a name, a version or a folder; None where it is none."""
    good = isinstance(value, str) and value.isprintable() and 0 < len(value) <= LONGEST_NAME
    return value if good and max(len(part.encode()) for part in value.split("/")) <= LONGEST_PART else None


def _length(limit: Any) -> int:
    """The longest sequence that a server says it takes."""
    if isinstance(limit, bool) or int(limit) < 1:
        raise EngineError(f"The server says that it takes sequences of {limit} tokens at most; see its log.")
    return int(limit)


def _ask(client: Client, dialect: Dialect, found: Found, sampling: Sampling | None, *, most: int) -> Response:
    """One response to the probe's prompt."""
    call = dialect.sample(dialect.prompt, sampling, model=found.model, seed=7, most=most)
    return client.ask(call, dialect.sampled)


def _same(first: Response, second: Response) -> bool:
    """Whether two responses are the same but for rounding."""
    return list(first.ids) == list(second.ids) and bool(np.allclose(first.logp, second.logp, atol=0.2))
