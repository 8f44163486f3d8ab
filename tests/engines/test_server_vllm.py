"""Real vLLM servers on loopback: one in float32, one in bfloat16 with a penalty and a chat template that nobody asked
for, and one with a temperature.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.cli.main import status
from samepolicy.diagnose import check
from samepolicy.engines.base import Engine, engine
from samepolicy.errors import InputError
from samepolicy.records.side import Sampling
from samepolicy.testing import engine_laws
from tests.serving import smollm2_folder, vllm_server, with_settings

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("vllm server")]
TEXTS = ("What is the capital of France?", "Name three colours of the rainbow.", "Hi", "Tell me a very short story.")
TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("server")
    model = with_settings(smollm2_folder(), place / "model", repetition_penalty=1.3)
    (place / "template.jinja").write_text(TEMPLATE)
    template = ("--chat-template", str(place / "template.jinja"))
    with vllm_server(model, place / "log", "--dtype", "bfloat16", "--served-model-name", "smol", *template) as address:
        yield address


@pytest.fixture(scope="module")
def server(url: str) -> Engine:
    return engine(f"server:{url}", dtype="bfloat16")


@pytest.fixture(scope="module")
def trainer() -> Engine:
    return engine(f"hf:{smollm2_folder()}", dtype="bfloat16", device="cpu")


def test_it_keeps_the_laws_of_an_engine(url: str):
    """One request at a time: what shares a batch is rounded otherwise in bfloat16, and a seed picks another token."""
    server = engine(f"server:{url}", dtype="bfloat16", concurrency=1)
    prompts = Ragged.from_lists([[1, 4093, 198], [1, 504, 3575, 282, 260]])
    engine_laws(server, prompts=prompts, responses=Ragged.from_lists([[504, 3575, 282], [5860]]), atol=0.3)


def test_bf16_against_bf16_is_numerics_but_for_the_template(server: Engine, trainer: Engine):
    found = check(rollout=server, trainer=trainer, prompts=TEXTS * 4, sampling=Sampling(max_tokens=16))
    assert 0.02 < found.summary["logp_diff"]["mean"] < 0.08
    assert 5e-4 < found.summary["k3"]["mean"] < 6e-3
    assert found.summary["prob_corr"]["pearson"] > 0.998
    assert (found.verdict, found.exit_code) == ("different", 1)
    assert "turns 16 of 16 prompts into other ids" in found.sentence
    assert "What can be compared is within rounding" in found.sentence
    assert any("reshapes the distribution of a client" in warning for warning in found.warnings)
    ids = [server.encode(text) for text in TEXTS * 4]
    same_ids = check(rollout=server, trainer=trainer, prompts=ids, sampling=Sampling(max_tokens=16))
    assert same_ids.verdict == "numerics"


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with vllm_server(smollm2_folder(), tmp_path_factory.mktemp("exact") / "log", "--dtype", "float32") as address:
        yield address


def test_fp32_is_the_fp32_trainer_by_the_command(exact: str, capsys: pytest.CaptureFixture[str]):
    asked = ["--rollout", exact, "--dtype", "float32", "--device", "cpu", "--max-tokens", "12"]
    code = status(["check", smollm2_folder(), *asked, "--json"])
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert (code, found["verdict"], printed.err) == (0, "same", "")
    assert found["metrics"]["logp_diff"]["mean"] < 1e-4
    assert (found["warnings"], found["semantics"]["status"]) == ([], "agrees")


def test_by_text_come_the_log_probs_that_come_by_ids(exact: str):
    by_ids, by_text = (engine(f"server:{exact}", dtype="float32", by_text=text) for text in (False, True))
    prompts = Ragged.from_lists([by_text.encode(text) for text in (*TEXTS, "Write only emojis: 🎉🎈", "写一句话")])
    ids, text = (one.generate(prompts, Sampling(max_tokens=16, seed=5), samples=2) for one in (by_ids, by_text))
    told = text.rollout.extra["by_text"]
    assert (told["sent"], told["responses"], told["other"], told["misread"]) == ("text", len(text), 0, 0)
    kept = [(a[: len(b)], b) for a, b in zip(ids["response_ids"], text["response_ids"], strict=True)]
    assert all(np.array_equal(a, b) for a, b in kept)
    assert text.tokens > 0.9 * ids.tokens
    logp = [a[: len(b)] for a, b in zip(ids["rollout_logp"], text["rollout_logp"], strict=True)]
    np.testing.assert_allclose(text["rollout_logp"].values, np.concatenate(logp), atol=1e-3)
    scored = by_text.score(text["prompt_ids"], text["response_ids"]).logp.values
    expected = by_ids.score(text["prompt_ids"], text["response_ids"]).logp.values
    known = np.isfinite(scored)
    np.testing.assert_allclose(scored[known], expected[known], atol=1e-3)
    assert known.mean() > 0.5  # what the server encodes otherwise than was sampled has none


def test_by_text_the_tokens_rung_is_open(exact: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    asked = ["--rollout", exact, "--rollout-by-text", "--dtype", "float32", "--device", "cpu", "--max-tokens", "12"]
    code = status(["check", smollm2_folder(), *asked, "--json"])
    found = json.loads(capsys.readouterr().out)
    rung = next(rung for rung in found["ladder"] if rung["name"] == "tokens")
    assert (code, found["verdict"], rung["status"]) == (0, "same", "not checked")
    assert "only text was sent" in rung["why"]


def test_what_nobody_asked_for_is_noticed(server: Engine):
    extra = server.describe(Sampling()).extra
    assert extra["server_defaults"].startswith("not neutral")
    assert extra["generation_config"] == {"repetition_penalty": 1.3}
    assert extra["logprobs_mode"] == "raw"


def test_a_server_started_with_another_temperature_is_noticed(tmp_path: Path):
    warm = ("--dtype", "bfloat16", "--override-generation-config", '{"temperature": 0.6}')
    with vllm_server(smollm2_folder(), tmp_path / "log", *warm) as address:
        extra = engine(f"server:{address}").describe(Sampling()).extra
    assert extra["server_defaults"].startswith("not neutral")
    assert "generation_config" not in extra  # the model's files say nothing of it


def test_another_chat_template_gives_other_ids(server: Engine, trainer: Engine):
    assert server.encode("Hi") == trainer.tokenizer("Hi\n")["input_ids"] != trainer.encode("Hi")
    assert server.decode([504, 3575]) == trainer.decode([504, 3575])
    mine, theirs = server.describe(Sampling()), trainer.describe(Sampling())
    assert mine.template != theirs.template
    assert (mine.tokenizer, mine.weights) == (theirs.tokenizer, theirs.weights)


def test_processed_log_probs_are_refused_where_the_server_records_raw_ones(server: Engine):
    with pytest.raises(InputError, match="--logprobs-mode processed_logprobs"):
        server.generate(Ragged.from_lists([[1, 4093]]), Sampling(temperature=0.7))


def test_the_server_refuses_ids_and_lengths_in_one_sentence(server: Engine, url: str):
    one = Ragged.from_lists([[1, 2]])
    with pytest.raises(InputError, match="out of vocabulary|ids run from 0"):
        server.score(one, Ragged.from_lists([[60000]]))
    with pytest.raises(InputError, match="takes 511 at most"):
        server.score(one, Ragged.from_lists([[5] * 511]))
    with pytest.raises(InputError, match="serves no model 'other'; it serves smol"):
        engine(f"server:{url}", served_model="other")


def test_recorded_and_scored_log_probs_agree_through_the_server(server: Engine):
    prompts = Ragged.from_lists([server.encode(text) for text in TEXTS])
    run = server.generate(prompts, Sampling(max_tokens=12), samples=2)
    scores = server.score(run["prompt_ids"], run["response_ids"], top=3)
    assert np.abs(run["rollout_logp"].values - scores.logp.values).mean() < 0.05
    assert scores.top_ids is not None
    assert (scores.top_ids.values >= 0).all()
