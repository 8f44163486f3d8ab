"""The server engine against stand-ins: dialects, retries, the journal, and everything a server can do wrong."""

import json
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Engine, engine
from samepolicy.engines.server_address import KEY, address
from samepolicy.engines.server_client import Client, Patience
from samepolicy.engines.server_journal import Call
from samepolicy.errors import EngineError, InputError, MissingDependencyError
from samepolicy.records.side import Sampling
from samepolicy.testing import engine_laws
from tests.fake_server import KINDS, Toy, serving

pytestmark = pytest.mark.full
TOY = Toy()
PROMPTS = Ragged.from_lists([TOY.engine.encode("one"), TOY.engine.encode("three four")])
RESPONSES = Ragged.from_lists([[5, 6, 7], [40]])
QUICK = Patience(retries=3, pause=0.01, timeout=5)


def connected(url: str, **options: Any) -> Engine:
    return engine(f"server:{url}", **{"retries": 0, "timeout": 5.0, **options})


@pytest.mark.parametrize("answer", [KINDS["vllm"], partial(KINDS["sglang"], raw=True)], ids=["vllm", "sglang"])
def test_a_server_that_scores_keeps_the_laws(answer: Any):
    with serving(lambda path, body, _: answer(TOY, path, body)) as url:
        engine_laws(connected(url), prompts=PROMPTS, responses=RESPONSES)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_it_records_is_what_the_model_says(kind: str):
    with serving(lambda path, body, _: KINDS[kind](TOY, path, body)) as url:
        one = connected(url, dtype="float32")
        run = one.generate(PROMPTS, Sampling(max_tokens=6, seed=3), samples=2)
    assert run.rollout.engine == kind
    assert run.rollout.dtype == "float32"
    assert run.rollout.extra["logprobs_mode"] == {"sglang": "temperature"}.get(kind, "raw")
    assert run.rollout.extra["server_defaults"] == "neutral"
    expected = TOY.engine.score(run["prompt_ids"], run["response_ids"]).logp.values
    np.testing.assert_allclose(run["rollout_logp"].values, expected, atol=1e-5)


def test_llamacpp_says_that_it_cannot_score():
    with serving(lambda path, body, _: KINDS["llamacpp"](TOY, path, body)) as url:
        one = connected(url)
        assert not one.capabilities.score
        with pytest.raises(EngineError, match="no log-probs of given ids"):
            one.score(PROMPTS, RESPONSES)


@pytest.mark.parametrize("default", [{"temperature": 0.3}, {"repetition_penalty": 3.0}, {"top_k": 1}])
def test_defaults_that_nobody_asked_for_are_noticed(default: dict[str, Any]):
    with serving(lambda path, body, _: KINDS["vllm"](TOY, path, {**default, **body})) as url:
        assert connected(url).describe(Sampling()).extra["server_defaults"].startswith("not neutral")


def test_raw_log_probs_are_not_taken_for_processed_ones():
    with serving(lambda path, body, _: KINDS["vllm"](TOY, path, body)) as url:
        one = connected(url)
        with pytest.raises(InputError, match="records raw log-probs"):
            one.generate(PROMPTS, Sampling(temperature=0.7))
        with pytest.raises(InputError, match="records raw log-probs"):
            one.score(PROMPTS, RESPONSES, sampling=Sampling(top_p=0.9))
        one.generate(PROMPTS, Sampling(temperature=0, max_tokens=2))


def broken(change: Any) -> Any:
    """A vLLM stand-in whose completions are changed before they are sent."""

    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        status, value = KINDS["vllm"](TOY, path, body)
        return change(status, value) if path == "/v1/completions" and status == 200 else (status, value)

    return answer


def without_logprobs(status: int, value: Any) -> Any:
    value["choices"][0]["logprobs"] = None
    value["choices"][0]["prompt_logprobs"] = None
    return status, value


def one_fewer(status: int, value: Any) -> Any:
    choice = value["choices"][0]
    choice["logprobs"]["token_logprobs"].pop()
    choice["prompt_logprobs"] = (choice["prompt_logprobs"] or [None])[:-1]
    return status, value


def other_ids(status: int, value: Any) -> Any:
    value["choices"][0]["prompt_token_ids"] = [1, *value["choices"][0]["prompt_token_ids"]]
    return status, value


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (without_logprobs, "no token_logprobs|no prompt_logprobs"),
        (one_fewer, "log-probs for . tokens"),
        (lambda status, value: (200, {"choices": []}), "empty choices"),
        (lambda status, value: (200, "<html>"), "did not answer with JSON"),
        (lambda status, value: (200, [1]), "not answer with a JSON object"),
        (lambda status, value: (401, {}), f"set {KEY}"),
        (lambda status, value: (418, {"detail": "teapot"}), "status 418 .teapot"),
    ],
)
def test_a_wrong_answer_is_one_sentence(change: Any, sentence: str):
    with serving(broken(change)) as url:
        for ask in (lambda e: e.generate(PROMPTS, Sampling(max_tokens=4)), lambda e: e.score(PROMPTS, RESPONSES)):
            with pytest.raises(EngineError, match=sentence):
                ask(connected(url))


def test_other_ids_than_were_sent_are_refused():
    with serving(broken(other_ids)) as url, pytest.raises(EngineError, match="other ids than it was sent"):
        connected(url).score(PROMPTS, RESPONSES)


def test_a_nan_in_json_stays_a_nan():
    def spoil(status: int, value: Any) -> Any:
        value["choices"][0]["logprobs"]["token_logprobs"][0] = float("nan")
        return status, value

    with serving(broken(spoil)) as url:
        run = connected(url).client.post_all([], [])
        one = connected(url)
        one.__dict__["mode"], one.__dict__["defaults"] = "raw", "neutral"
        run = one.generate(PROMPTS, Sampling(max_tokens=4))
    assert np.isnan(run["rollout_logp"].values[run.offsets[:-1]]).all()
    assert np.isfinite(run["rollout_logp"].values).sum() == run.tokens - len(run)


def test_minus_infinity_is_read_from_its_stand_in():
    def spoil(status: int, value: Any) -> Any:
        for entries in value["choices"][0]["prompt_logprobs"][1:]:
            for entry in entries.values():
                entry["logprob"] = -9999.0
        return status, value

    with serving(broken(spoil)) as url:
        assert (connected(url).score(PROMPTS, RESPONSES).logp.values == -np.inf).all()


def test_ids_lengths_and_names_that_do_not_fit_are_refused():
    with serving(lambda path, body, _: KINDS["vllm"](TOY, path, body)) as url:
        one = connected(url)
        with pytest.raises(InputError, match="out of vocabulary"):
            one.score(PROMPTS, RESPONSES.with_values(np.full(4, 12345)))
        with pytest.raises(InputError, match="takes 63 at most"):
            one.generate(Ragged.from_lists([[5] * 64]), Sampling())
        with pytest.raises(InputError, match="serves no model 'other'; it serves toy"):
            connected(url, served_model="other")


def test_an_old_server_is_refused_by_both_versions():
    def old(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        return (200, {"version": "0.8.5"}) if path == "/version" else KINDS["vllm"](TOY, path, body)

    with serving(old) as url, pytest.raises(EngineError, match=r"0\.8\.5 is older than 0\.10\.2"):
        connected(url)


def test_a_stranger_is_refused():
    with serving(lambda *_: (404, {})) as url, pytest.raises(EngineError, match="neither vLLM, SGLang nor"):
        connected(url)


def test_a_server_that_is_down_is_one_sentence():
    with serving(lambda *_: (200, {})) as url:
        pass
    with pytest.raises(EngineError, match=r"gave no answer in 1 tries.*see that it is running"):
        connected(url)


def test_busy_and_lost_connections_are_tried_again():
    seen: list[int] = []
    answers: list[Any] = [(429, {"error": "busy"}), (503, ""), None, (200, {"fine": 1})]

    def answer(*_: Any) -> Any:
        seen.append(1)
        return answers[len(seen) - 1]

    with serving(answer) as url:
        assert Client(url, QUICK).post(Call("/x", {})) == {"fine": 1}
    assert len(seen) == 4


def test_a_refusal_is_not_tried_again():
    seen: list[int] = []
    refusal = {"error": {"message": "too long"}}
    with serving(lambda *_: seen.append(1) or (400, refusal)) as url, pytest.raises(InputError, match="too long"):
        Client(url, QUICK).post(Call("/x", {}))
    assert len(seen) == 1


def test_a_slow_server_times_out():
    release = threading.Event()
    with serving(lambda *_: release.wait(5) and (200, {})) as url:
        with pytest.raises(EngineError, match="ReadTimeout"):
            Client(url, Patience(retries=0, timeout=0.1)).post(Call("/x", {}))
        release.set()


def test_no_more_requests_are_in_flight_than_allowed():
    lock, flying, most = threading.Lock(), [0], [0]
    full = threading.Barrier(3)

    def answer(*_: Any) -> Any:
        with lock:
            flying[0] += 1
            most[0] = max(most[0], flying[0])
        full.wait(5)
        with lock:
            flying[0] -= 1
        return 200, {"ok": 1}

    with serving(answer) as url:
        client = Client(url, Patience(concurrency=3))
        assert client.post_all([Call("/x", {"i": i}) for i in range(9)], [len] * 9) == [1] * 9
    assert most[0] == 3


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path):
    journal, asked = tmp_path / "journal.jsonl", []
    prompts = Ragged.from_lists([TOY.engine.encode(word) for word in ("a", "b", "c", "d", "e", "f")])

    def dying(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        if path == "/v1/completions":
            asked.append(body["prompt"])
            if len(asked) == 4:
                return None
        return KINDS["vllm"](TOY, path, body)

    with serving(dying) as url:
        options = {"journal": str(journal), "concurrency": 1}
        with pytest.raises(EngineError, match=r"3 answers are kept in .*journal.jsonl; run the same again"):
            connected(url, **options).score(prompts, prompts)
        journal.write_text(journal.read_text() + '{"asked": "cut o')
        whole = connected(url, **options).score(prompts, prompts)
    assert [tuple(p) for p in asked] == [tuple(p) * 2 for p in prompts][:4] + [tuple(p) * 2 for p in prompts][3:]
    expected = TOY.engine.score(prompts, prompts).logp.values
    np.testing.assert_allclose(whole.logp.values, expected, atol=1e-5)


def test_the_key_goes_to_the_server_and_nowhere_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(KEY, "very-secret")
    headers: list[dict[str, str]] = []

    def answer(path: str, body: dict[str, Any], given: dict[str, str]) -> Any:
        headers.append(given)
        return KINDS["vllm"](TOY, path, body)

    with serving(answer) as url:
        one = connected(url, journal=str(tmp_path / "j"))
        run = one.generate(PROMPTS, Sampling(max_tokens=2))
    assert {h["Authorization"] for h in headers} == {"Bearer very-secret"}
    assert "very-secret" not in json.dumps(run.rollout.as_dict()) + (tmp_path / "j").read_text() + repr(vars(one))


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://me:pw@host", "http://host?key=1"])
def test_an_address_that_is_none_is_refused(url: str):
    with pytest.raises(InputError, match="address of a server"):
        address(url)


@pytest.mark.parametrize("given", [{"concurrency": 0}, {"retries": -1}, {"timeout": 0.0}, {"pause": -1.0}])
def test_impatience_is_refused(given: dict[str, Any]):
    with pytest.raises(InputError, match="must be"):
        Patience(**given)


def test_without_httpx_there_is_a_pip_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(os.sys.modules, "httpx", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        Client("localhost:1", QUICK)
