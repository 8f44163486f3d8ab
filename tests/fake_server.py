"""Small stand-ins for real servers, on loopback: each speaks the documented JSON of its kind around a toy model.

They show that requests and answers are read as documented, not that the real server behaves as documented.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.engines.base import engine
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


class Toy:
    """The toy model behind a server: samples with a seed, and scores."""

    def __init__(self) -> None:
        self.engine = engine("toy:")

    def sample(self, ids: list[int], **settings: Any) -> tuple[list[int], list[float], str]:
        run = self.engine.generate(Ragged.from_lists([ids]), Sampling(**settings))
        return run["response_ids"][0].tolist(), run["rollout_logp"].values.tolist(), run["finish_reason"][0]

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


def sglang(toy: Toy, path: str, body: dict[str, Any]) -> Answer:
    """SGLang's /generate."""
    if path == "/get_server_info":
        return 200, {"version": "0.5.4", "model_path": "toy", "context_length": 64}
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
        return 200, {"build_info": "b6000-abc", "model_path": "toy.gguf"}
    if path != "/completion":
        return 404, {"error": {"message": "File Not Found"}}
    given = {"repetition_penalty": body["repeat_penalty"]} if "repeat_penalty" in body else {}
    new, logp, finish = toy.sample(body["prompt"], **_sampling(body, body["n_predict"], body["seed"], **given))
    listed = [{"id": i, "token": "", "logprob": p, "top_logprobs": []} for i, p in zip(new, logp, strict=True)]
    stop = "eos" if finish == "stop" else "limit"
    return 200, {"content": "", "tokens": new, "completion_probabilities": listed, "stop_type": stop}


KINDS = {"vllm": vllm, "sglang": sglang, "llamacpp": llamacpp}
