"""Servers that give text and no token ids: stand-ins around the toy, whose tokenizer is at hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.cli.main import status
from samepolicy.diagnose import check
from samepolicy.engines import fingerprint
from samepolicy.engines.base import Engine, engine
from samepolicy.errors import EngineError, InputError
from samepolicy.records.side import Sampling
from samepolicy.testing import engine_laws
from tests.fake_server import KINDS, Toy, openai, serving, toy_tokenizer

pytestmark = pytest.mark.full
TOY = Toy()
PROMPTS = Ragged.from_lists([TOY.engine.encode("one"), TOY.engine.encode("three four")])
RESPONSES = Ragged.from_lists([[5, 6, 7], [40]])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return toy_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def connected(url: str, **options: Any) -> Engine:
    return engine(f"server:{url}", **{"retries": 0, "timeout": 5.0, **options})


def plain(**told: bool) -> Any:
    return lambda path, body, _: openai(TOY, path, body, **told)


def changed(change: Any, **told: bool) -> Any:
    """A stand-in whose choices are changed before they are sent."""

    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        status, value = openai(TOY, path, body, **told)
        if path == "/v1/completions" and status == 200:
            change(body, value)
        return status, value

    return answer


@pytest.mark.parametrize("ids", [False, True], ids=["text", "ids"])
def test_it_keeps_the_laws_and_the_values_of_the_model(tokenizer: str, ids: bool):
    with serving(plain(ids=ids)) as url:
        one = connected(url, tokenizer=tokenizer)
        run = one.generate(PROMPTS, Sampling(max_tokens=6, seed=3), samples=2)
        scores = one.score(run["prompt_ids"], run["response_ids"])
        if ids:
            engine_laws(one, prompts=PROMPTS, responses=RESPONSES)
    expected = TOY.engine.score(run["prompt_ids"], run["response_ids"]).logp.values
    np.testing.assert_allclose(run["rollout_logp"].values, expected, atol=1e-5)
    np.testing.assert_allclose(scores.logp.values, expected, atol=1e-5)
    assert (run.rollout.engine, run.rollout.extra["logprobs_mode"]) == ("openai", "raw")
    told = run.rollout.extra["by_text"]
    assert told == {
        "sent": "ids" if ids else "text", "responses": 4, "tokens": run.tokens,
        "guessed": 0, "cut": 0, "other": 0, "misread": 0,
    }  # fmt: skip


def test_what_came_as_text_is_what_comes_by_ids(tokenizer: str):
    runs = []
    for answer in (plain(), lambda path, body, _: KINDS["vllm"](TOY, path, body)):
        with serving(answer) as url:
            runs.append(connected(url, tokenizer=tokenizer).generate(PROMPTS, Sampling(max_tokens=9, seed=1)))
    text, ids = runs
    np.testing.assert_array_equal(text["response_ids"].values, ids["response_ids"].values)
    np.testing.assert_allclose(text["rollout_logp"].values, ids["rollout_logp"].values, atol=1e-6)


def test_a_plain_server_that_knows_ids_is_spoken_to_by_ids(tokenizer: str):
    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        return (404, {}) if path == "/version" else KINDS["vllm"](TOY, path, body)

    with serving(answer) as url:
        one = connected(url)
        assert (one.found.kind, one.dialect.name) == ("openai", "vllm")
        assert "by_text" not in one.generate(PROMPTS, Sampling(max_tokens=3)).rollout.extra


@pytest.fixture
def one_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides declare the toy's tokenizer, as they do where it is a model's."""
    declared = TOY.engine.describe(Sampling()).tokenizer
    monkeypatch.setattr(fingerprint, "tokenizer", lambda _: declared)


@pytest.mark.usefixtures("one_tokenizer")
def test_the_tokens_rung_says_that_only_text_was_sent(tokenizer: str):
    with serving(plain()) as url:
        one = connected(url, tokenizer=tokenizer, dtype="float32")
        found = check(rollout=one, trainer=TOY.engine, prompts=["one", "two", "three"], sampling=Sampling(max_tokens=8))
    rungs = {rung.name: rung for rung in found.ladder}
    assert found.verdict == "same"
    assert rungs["tokens"].status == "not checked"
    assert "only text was sent" in rungs["tokens"].why
    assert "a token-id fault cannot be excluded" in rungs["tokens"].why
    assert "renders no template" in rungs["template"].why
    assert next(step for step in found.steps if step.name == "score prompt + response").status == "not checked"
    assert any(fact.name == "same ids" and fact.status == "not checked" for fact in found.facts)


@pytest.mark.usefixtures("one_tokenizer")
def test_a_prompt_that_the_server_reads_otherwise_fails_the_rung(tokenizer: str):
    def one_more(body: dict[str, Any], value: dict[str, Any]) -> None:
        value["usage"]["prompt_tokens"] += 1

    with serving(changed(one_more)) as url:
        one = connected(url, tokenizer=tokenizer, dtype="float32")
        found = check(rollout=one, trainer=TOY.engine, prompts=["one", "two"], sampling=Sampling(max_tokens=8))
    rung = next(rung for rung in found.ladder if rung.name == "tokens")
    assert rung.status == "failed"
    assert "2 of 2 responses to a prompt that the server read as other ids" in rung.why


def test_ids_that_no_text_gives_are_counted(tokenizer: str):
    twice = Ragged.from_lists([[96, *TOY.engine.encode("one")], TOY.engine.encode("one")])  # BOS twice is no text's
    with serving(plain()) as url:
        run = connected(url, tokenizer=tokenizer).generate(twice, Sampling(max_tokens=3))
    assert run.rollout.extra["by_text"]["misread"] == 1


@pytest.mark.parametrize("at", [3, 0])
def test_a_response_ends_before_a_token_that_the_tokenizer_has_not(tokenizer: str, at: int):
    def foreign(body: dict[str, Any], value: dict[str, Any]) -> None:
        if body["max_tokens"] == 5:
            value["choices"][0]["logprobs"]["tokens"][at] = "\N{SNOWMAN}"

    with serving(changed(foreign)) as url:
        run = connected(url, tokenizer=tokenizer).generate(PROMPTS, Sampling(max_tokens=5))
    assert run["response_ids"].lengths.tolist() == [at, at]
    assert run["finish_reason"].tolist() == ["length", "length"]
    assert run.rollout.extra["by_text"]["cut"] == 2


def test_a_response_of_another_text_than_its_tokens_is_counted(tokenizer: str):
    def other(body: dict[str, Any], value: dict[str, Any]) -> None:
        value["choices"][0]["text"] = "something else"

    with serving(changed(other)) as url:
        run = connected(url, tokenizer=tokenizer).generate(PROMPTS, Sampling(max_tokens=5))
    assert run.rollout.extra["by_text"]["other"] == 2


def test_by_text_there_is_no_prompt_without_the_bos_that_the_server_adds(tokenizer: str):
    empty = Ragged(PROMPTS.values[:0], np.zeros(3, np.int64))
    with serving(plain()) as url:
        assert np.isnan(connected(url, tokenizer=tokenizer).score(empty, RESPONSES).logp.values).all()


def test_where_the_server_echoes_other_tokens_there_is_no_log_prob(tokenizer: str):
    def merged(body: dict[str, Any], value: dict[str, Any]) -> None:
        told = value["choices"][0]["logprobs"]
        if body.get("echo") and "four" in body["prompt"]:
            told["tokens"][-2:-1] = ["other"]

    with serving(changed(merged)) as url:
        logp = connected(url, tokenizer=tokenizer).score(PROMPTS, RESPONSES).logp
    assert np.isfinite(logp[0]).all()
    assert np.isnan(logp[1]).all()


def test_without_echo_it_samples_but_does_not_score(tokenizer: str):
    with serving(plain(echo=False)) as url:
        one = connected(url, tokenizer=tokenizer)
        assert not one.capabilities.score
        assert "no log-probs of given ids" in one.capabilities.note
        assert one.generate(PROMPTS, Sampling(max_tokens=3)).tokens


def test_a_server_that_refuses_unknown_settings_is_not_sent_any(tokenizer: str):
    with serving(plain(wide=False, echo=False)) as url:
        one = connected(url, tokenizer=tokenizer)
        assert one.generate(PROMPTS, Sampling(max_tokens=3, temperature=0.7, logprobs="raw")).tokens
        with pytest.raises(InputError, match="temperature and top_p alone, but top_k is asked for"):
            one.generate(PROMPTS, Sampling(top_k=5, logprobs="raw"))


def test_top_tokens_and_settings_cannot_be_scored_by_text(tokenizer: str):
    with serving(plain()) as url:
        one = connected(url, tokenizer=tokenizer)
        assert not one.capabilities.top
        with pytest.raises(EngineError, match=r"score without top=\."):
            one.score(PROMPTS, RESPONSES, top=3)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda value: value.update(logprobs=None), "no tokens, so there is no log-prob"),
        (lambda value: value["logprobs"].update(tokens=[7] * len(value["logprobs"]["tokens"])), "token 7, which is no"),
        (lambda value: value["logprobs"]["tokens"].pop(), "log-probs for . tokens"),
        (lambda value: value["logprobs"].update(tokens=["\N{SNOWMAN}"]), "token that the tokenizer has not"),
    ],
)
def test_an_answer_that_makes_no_sense_is_one_sentence(tokenizer: str, change: Any, sentence: str):
    answer = changed(lambda _, value: change(value["choices"][0]))
    with serving(answer) as url, pytest.raises(EngineError, match=sentence):
        connected(url, tokenizer=tokenizer)


def test_without_a_tokenizer_it_is_refused():
    with serving(plain()) as url, pytest.raises(EngineError, match="only the model's tokenizer makes ids of it"):
        connected(url)


def test_check_takes_the_tokenizer_of_its_model_and_says_so(
    tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "prompts.txt").write_text("one\nthree four\n")
    told = ["--trainer", "toy:", "--max-tokens", "4", "--rollout-dtype", "float32"]
    asked = ["check", tokenizer, "--prompts", str(tmp_path / "prompts.txt"), *told]
    with serving(plain()) as url:
        found = status([*asked, "--rollout", url])
        assert f"by the tokenizer of {tokenizer} (another: --rollout-tokenizer)" in capsys.readouterr().err
        assert found == status([*asked, "--rollout", url, "--rollout-tokenizer", tokenizer]) != 2
        assert "another: --rollout-tokenizer" not in capsys.readouterr().err
        assert status([*asked[:1], *asked[2:], "--rollout", url]) == 2
    assert "or --rollout-tokenizer PATH" in capsys.readouterr().err


def test_a_server_can_be_made_to_speak_by_text(tokenizer: str):
    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        if path == "/v1/completions" and isinstance(body["prompt"], str):
            return openai(TOY, path, body)
        return KINDS["vllm"](TOY, path, body)

    with serving(answer) as url:
        run = connected(url, tokenizer=tokenizer, by_text=True).generate(PROMPTS, Sampling(max_tokens=4))
    assert (run.rollout.engine, run.rollout.extra["by_text"]["sent"]) == ("vllm", "text")


def echoing(change: Any) -> Any:
    """A stand-in that reads ids and whose echo is changed."""

    def only(body: dict[str, Any], value: dict[str, Any]) -> None:
        if body.get("echo"):
            change(value["choices"][0]["logprobs"])

    return changed(only, ids=True)


def without_first(told: dict[str, Any]) -> None:
    """A BOS that is not echoed: every log-prob is the next token's."""
    for name in ("tokens", "token_logprobs"):
        told[name].pop(0)


def turned(told: dict[str, Any]) -> None:
    for name in ("tokens", "token_logprobs"):
        told[name].reverse()


def zeros(told: dict[str, Any]) -> None:
    told["token_logprobs"] = [0.0] * len(told["tokens"])


@pytest.mark.parametrize("change", [without_first, turned, zeros, lambda told: told.update(tokens=["z"] * 99)])
def test_an_echo_by_ids_that_is_of_other_tokens_or_made_up_gives_no_log_probs(tokenizer: str, change: Any):
    with serving(echoing(change)) as url:
        assert not connected(url, tokenizer=tokenizer).capabilities.score


def test_an_echo_by_ids_may_lack_the_sampled_token_and_hold_pieces_of_characters(tokenizer: str):
    def change(told: dict[str, Any]) -> None:
        told["tokens"], told["token_logprobs"] = told["tokens"][:-1], told["token_logprobs"][:-1]
        told["tokens"][0], told["tokens"][-1] = "bytes:\\xe2", "\ufffd"

    expected = TOY.engine.score(PROMPTS, RESPONSES).logp.values
    with serving(echoing(change)) as url:
        np.testing.assert_allclose(
            connected(url, tokenizer=tokenizer).score(PROMPTS, RESPONSES).logp.values, expected, atol=1e-5
        )


@pytest.mark.parametrize("at", [0, 1, -1])
def test_half_a_character_is_a_piece_of_one(tokenizer: str, at: int):
    def half(body: dict[str, Any], value: dict[str, Any]) -> None:
        if body["max_tokens"] == 5:
            value["choices"][0]["logprobs"]["tokens"][at] = "\ud83d"

    runs = []
    for answer in (changed(half), plain()):
        with serving(answer) as url:
            runs.append(connected(url, tokenizer=tokenizer).generate(PROMPTS, Sampling(max_tokens=5, seed=2)))
    run, untouched = runs
    for found, ids in zip(run["response_ids"], untouched["response_ids"], strict=True):
        assert found.tolist() == ids.tolist()[: len(found)]
    told = run.rollout.extra["by_text"]
    assert told["guessed"] + told["cut"] >= 2


@pytest.mark.parametrize("usage", [[1], None, {"prompt_tokens": "5"}, {"prompt_tokens": True}, {"prompt_tokens": 1e9}])
def test_a_count_of_prompt_tokens_that_is_none_says_nothing(tokenizer: str, usage: Any):
    with serving(changed(lambda body, value: value.update(usage=usage), ids=True)) as url:
        run = connected(url, tokenizer=tokenizer).generate(PROMPTS, Sampling(max_tokens=2))
    assert (run.rollout.extra["by_text"]["sent"], run.rollout.extra["by_text"]["misread"]) == ("text", 0)
