"""Small stand-ins for real servers, on loopback: each speaks the documented JSON of its kind around a toy model.

They show that requests and answers are read as the real server's source builds them, not that the real server does so.
"""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Engine, engine
from samepolicy.engines.server_client import Patience
from samepolicy.records.side import Sampling

Answer = tuple[int, Any]
"""Status, and JSON (or text as it is)."""


@contextmanager
def serving(answer: Callable[[str, dict[str, Any], dict[str, str]], Answer | None]) -> Iterator[str]:
    """Answer requests (path, body, headers) until the block ends; None closes the connection without an answer."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = answer(self.path, json.loads(body or b"{}"), dict(self.headers))
            if found is None:
                self.close_connection = True
                self.connection.close()
                return
            status, value = found
            text = value if isinstance(value, str) else json.dumps(value)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Keep quiet."""

        def handle(self) -> None:
            try:
                super().handle()
            except (OSError, ValueError):
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class raw:  # noqa: N801 - used like a function
    """A server that does to each connection what it is told; gives its address."""

    def __init__(self, do: Callable[[socket.socket], Any], context: ssl.SSLContext | None = None) -> None:
        self.do, self.context, self.listener = do, context, socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> str:
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()
        scheme = "https" if self.context else "http"
        return f"{scheme}://127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                if self.context is None:
                    self.answer(connection)
                    continue
                with self.context.wrap_socket(connection, server_side=True) as wrapped:
                    self.answer(wrapped)

    def answer(self, connection: socket.socket) -> None:
        connection.recv(65536)
        self.do(connection)

    def __exit__(self, *_: object) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(5)


def moved(code: int, target: str) -> Any:
    """A server that says to go elsewhere."""
    line = f"HTTP/1.1 {code} Moved\r\nLocation: {target}/x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    return raw(lambda connection: connection.sendall(line.encode()))


class Toy:
    """The toy model behind a server: samples with a seed, and scores."""

    def __init__(self) -> None:
        self.engine = engine("toy:")

    def sample(self, ids: list[int], **settings: Any) -> tuple[list[int], list[float], str]:
        run = self.engine.generate(Ragged.from_lists([ids]), Sampling(**settings))
        return run["response_ids"][0].tolist(), run["rollout_logp"].values.tolist(), run["finish_reason"][0]

    def tempered(self, ids: list[int], new: list[int], temperature: float) -> list[float]:
        sampling = Sampling(temperature=temperature)
        found = self.engine.score(Ragged.from_lists([ids]), Ragged.from_lists([new]), sampling=sampling)
        return found.logp.values.tolist()

    def score(self, ids: list[int], top: int) -> tuple[list[float], list[list[tuple[int, float]]]]:
        nothing = Ragged(np.zeros(0, np.int64), np.zeros(2, np.int64))
        found = self.engine.score(nothing, Ragged.from_lists([ids]), top=top or 1)
        pairs = [
            list(zip(i.tolist(), p.tolist(), strict=True))
            for i, p in zip(found.top_ids[0], found.top_logp[0], strict=True)
        ]
        return found.logp.values.tolist(), pairs


def _sampling(body: dict[str, Any], most: int, seed: int, **given: Any) -> dict[str, Any]:
    """Settings of a request as the toy takes them."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    told = {n: body[n] for n in names if n in body} | given
    return {**told, "max_tokens": most, "seed": seed, "logprobs": "raw"}


def vllm(toy: Toy, path: str, body: dict[str, Any]) -> Answer:
    """vLLM's completions."""
    if path == "/version":
        return 200, {"version": "0.32.0"}
    if path == "/v1/models":
        return 200, {"data": [{"id": "toy", "root": "toy", "max_model_len": 64}]}
    if path == "/tokenize":
        ids = toy.engine.encode(body["messages"] if "messages" in body else body["prompt"])
        return 200, {"tokens": ids}
    if path == "/detokenize":
        return 200, {"prompt": toy.engine.decode(body["tokens"])}
    if path != "/v1/completions":
        return 404, {"error": {"message": "Not Found"}}
    ids = body["prompt"]
    if not all(0 <= i < 98 for i in ids):
        return 400, {"error": {"message": "Token id is out of vocabulary"}}
    new, logp, finish = toy.sample(ids, **_sampling(body, body["max_tokens"], body.get("seed") or 0))
    choice = {"token_ids": new, "logprobs": {"token_logprobs": logp}, "finish_reason": finish, "text": ""}
    choice |= {"prompt_token_ids": ids, "prompt_logprobs": None}
    if "prompt_logprobs" in body:
        own, best = toy.score(ids, body["prompt_logprobs"])
        listed = [dict(b[: body["prompt_logprobs"]]) | {i: p} for i, p, b in zip(ids, own, best, strict=True)]
        places = [{str(i): {"logprob": p, "rank": 1} for i, p in entry.items()} for entry in listed]
        choice["prompt_logprobs"] = [None, *places[1:]]
    return 200, {"choices": [choice]}


def sglang(toy: Toy, path: str, body: dict[str, Any], *, raw: bool = False) -> Answer:
    """SGLang's /generate; with `raw`, as if it was started with SGLANG_RETURN_ORIGINAL_LOGPROB=1."""
    if path == "/server_info":
        return 200, {"version": "0.5.4", "model_path": "toy", "context_length": 64}
    if path == "/v1/models":
        return 200, {"data": [{"id": "toy", "root": "toy", "max_model_len": 64}]}
    if path != "/generate":
        return 404, {"detail": "Not Found"}
    ids, params = body["input_ids"], dict(body["sampling_params"])
    if not all(0 <= i < 98 for i in ids):
        return 400, {"error": {"message": "input ids out of range"}}
    if params.get("top_k") == -1:
        params["top_k"] = 0
    meta: dict[str, Any] = {"prompt_tokens": len(ids)}
    new: list[int] = []
    if params["max_new_tokens"]:
        new, logp, finish = toy.sample(ids, **_sampling(params, params["max_new_tokens"], params["sampling_seed"]))
        if not raw and params.get("top_k") != 1:  # else it is greedy, and the temperature is left out
            logp = toy.tempered(ids, new, params.get("temperature", 1.0))
        meta |= {"output_token_logprobs": [[p, i, None] for p, i in zip(logp, new, strict=True)]}
        meta |= {"finish_reason": {"type": finish}}
    if "logprob_start_len" in body:
        own, best = toy.score(ids, body["top_logprobs_num"])
        own_json = [None, *own[1:]]
        meta["input_token_logprobs"] = [[p, i, None] for p, i in zip(own_json, ids, strict=True)]
        tops = [[[p, i, None] for i, p in entry[: body["top_logprobs_num"]]] for entry in best]
        meta["input_top_logprobs"] = [None, *tops[1:]]
    return 200, {"text": "", "output_ids": new, "meta_info": meta}


def llamacpp(toy: Toy, path: str, body: dict[str, Any]) -> Answer:
    """llama.cpp's /completion."""
    if path == "/props":
        return 200, {
            "build_info": "b6000-abc",
            "model_path": "toy.gguf",
            "default_generation_settings": {"n_ctx": 64},
        }
    if path != "/completion":
        return 404, {"error": {"message": "File Not Found"}}
    given = {"repetition_penalty": body["repeat_penalty"]} if "repeat_penalty" in body else {}
    new, logp, finish = toy.sample(body["prompt"], **_sampling(body, body["n_predict"], body["seed"], **given))
    listed = [{"id": i, "token": "", "logprob": p, "top_logprobs": []} for i, p in zip(new, logp, strict=True)]
    stop = "eos" if finish == "stop" else "limit"
    return 200, {"content": "", "tokens": new, "completion_probabilities": listed, "stop_type": stop}


def openai(
    toy: Toy, path: str, body: dict[str, Any], *, ids: bool = False, wide: bool = True, echo: bool = True
) -> Answer:
    """A server with OpenAI's completions and no token ids in its answers.

    It takes ids as a prompt, settings that OpenAI has not, and echo, as told.
    """
    if path == "/v1/models":
        return 200, {"data": [{"id": "toy", "max_model_len": 64}]}
    if path != "/v1/completions":
        return 404, {"error": {"message": "Not Found"}}
    foreign = {"top_k", "min_p", "repetition_penalty", "skip_special_tokens", "return_token_ids"} & {*body}
    if not wide and foreign:
        return 400, {"error": {"message": f"Unrecognized request argument supplied: {min(foreign)}"}}
    if not isinstance(body["prompt"], str) and not ids:
        return 422, {"error": {"message": "prompt must be a string"}}
    if body.get("echo") and not echo:
        return 400, {"error": {"message": "echo is not supported"}}
    prompt = toy.engine.encode(body["prompt"]) if isinstance(body["prompt"], str) else body["prompt"]
    new, logp, finish = toy.sample(prompt, **_sampling(body, body["max_tokens"], body.get("seed") or 0))
    told: list[float | None] = list(logp)
    if body.get("echo"):
        told = [None, *toy.score(prompt, 1)[0][1:], *logp]
    given = [*prompt, *new] if body.get("echo") else new
    pieces = [toy.engine.decode([i]) for i in given]
    logprobs = {"tokens": pieces, "token_logprobs": told, "top_logprobs": [{}] * len(pieces)}
    choice = {"text": "".join(pieces).removesuffix("</s>"), "logprobs": logprobs, "finish_reason": finish}
    return 200, {"choices": [choice], "usage": {"prompt_tokens": len(prompt)}}


def toy_tokenizer(folder: Path) -> str:
    """The toy's characters as a tokenizer that adds a BOS, saved in a folder."""
    from tokenizers import Tokenizer, decoders, models, processors
    from transformers import PreTrainedTokenizerFast

    from samepolicy.engines.toy import BOS, CHARACTERS, EOS

    vocabulary = {character: i for i, character in enumerate(CHARACTERS)} | {"<s>": BOS, "</s>": EOS}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.add_special_tokens(["<s>", "</s>"])
    made.decoder = decoders.Fuse()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    (folder / "config.json").write_text("{}")
    return str(folder)


KINDS = {"vllm": vllm, "sglang": sglang, "llamacpp": llamacpp}

TOY = Toy()
PROMPTS = Ragged.from_lists([TOY.engine.encode("one"), TOY.engine.encode("three four")])
RESPONSES = Ragged.from_lists([[5, 6, 7], [40]])
ONCE = Patience(retries=0, timeout=5)
SECRET = "very-secret"


def connected(url: str, **options: Any) -> Engine:
    return engine(f"server:{url}", **{"retries": 0, "timeout": 5.0, **options})


def changed(change: Callable[[dict[str, Any]], Any], kind: str = "vllm") -> Any:
    """A stand-in whose answers with tokens are changed before they are sent."""

    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        code, value = KINDS[kind](TOY, path, body)
        if path in ("/v1/completions", "/generate", "/completion"):
            change(value)
        return code, value

    return answer
