"""Responses of SGLang's own /generate: a .json file with one or a list of them, or .jsonl with one a line.

Asked with return_logprob=True, each holds `meta_info.output_token_logprobs`, a list of log-prob, id and text of each
token; with logprob_start_len=0 the prompt's ids stand in `input_token_logprobs`. SGLang's OpenAI-style responses are
read as vllm_response.

Source: SGLang (commit 001067fff), python/sglang/srt/managers/tokenizer_manager.py. Unverified: the examples in the
tests are built from this source, not written by a server.
"""

from pathlib import Path
from typing import Any

from samepolicy.errors import InputError
from samepolicy.records.dumps import USUAL, Options, each, gathered, number, numbers
from samepolicy.records.formats.vllm_response import first_object, replies
from samepolicy.records.run import Run
from samepolicy.records.side import Side


def detect(path: Path) -> bool:
    """Whether the path is a .json or .jsonl file whose first object is such a response."""
    return "meta_info" in first_object(path)


def read(path: Path, options: Options = USUAL) -> Run:
    """All responses.

    Args:
        path: the file.
        options: who is told if it cannot be read.

    Raises:
        CorruptFileError: it is no JSON, or not as SGLang answers.
        InputError: responses without log-probs.
    """
    return each([path], lambda file: _run(replies(file)), options)


def _run(found: list[dict[str, Any]]) -> Run:
    """All responses."""
    rows = [_row(reply, i) for i, reply in enumerate(found)]
    return gathered(rows, source="sglang_response", rollout=Side(engine="sglang"))


def _row(reply: dict[str, Any], sample: int) -> dict[str, Any]:
    """One response as columns."""
    meta = reply["meta_info"]
    entries = meta.get("output_token_logprobs")
    if entries is None:
        raise InputError("Its responses hold no log-probs; ask for them with return_logprob=True.")
    reason, prompt = meta.get("finish_reason"), meta.get("input_token_logprobs") or []
    texts = [entry[2] if len(entry) > 2 else None for entry in entries]
    return {
        "prompt_ids": [entry[1] for entry in prompt] if len(prompt) == meta.get("prompt_tokens") else None,
        "response_ids": [entry[1] for entry in entries],
        "rollout_logp": numbers(number(entry[0]) for entry in entries),
        "token_text": texts if texts and all(isinstance(text, str) for text in texts) else None,
        "text": reply.get("text"),
        "finish_reason": reason.get("type") if isinstance(reason, dict) else reason,
        "policy_version": _version(meta.get("weight_version"), len(entries)),
        "sample": sample,
    }


def _version(version: Any, tokens: int) -> list[int] | None:
    """The version of the weights for each token, where it is a number."""
    return [int(version)] * tokens if str(version).isdigit() else None
