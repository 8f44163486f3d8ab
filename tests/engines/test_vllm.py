"""Real vLLM in this process against the laws of an engine, and against the Hugging Face trainer."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.diagnose import check
from samepolicy.engines import vllm_load
from samepolicy.engines.base import Engine, engine
from samepolicy.engines.vllm_ids import read_rows
from samepolicy.errors import EngineError, InputError, MissingDependencyError
from samepolicy.paths import paths
from samepolicy.records.side import Sampling
from samepolicy.semantics import infer
from samepolicy.testing import engine_laws
from tests.serving import smollm2_folder, with_settings

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("vllm")]
TEXTS = ("What is the capital of France?", "Name three colours of the rainbow.", "Hi", "Tell me a very short story.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model, with a generation config that asks for what nobody asked for."""
    target = tmp_path_factory.mktemp("models") / "penalised"
    return with_settings(smollm2_folder(), target, repetition_penalty=1.3, temperature=0.6, eos_token_id=[2, 30])


@pytest.fixture(scope="module")
def real(folder: str) -> Engine:
    return engine(f"vllm:{folder}", dtype="float32", max_model_len=512, max_num_seqs=16)


@pytest.fixture(scope="module")
def trainer(folder: str) -> Engine:
    return engine(f"hf:{folder}", dtype="float32", device="cpu")


def test_it_keeps_the_laws_of_an_engine(real: Engine):
    prompts = Ragged.from_lists([real.encode(text)[-n:] for text, n in zip(TEXTS[:2], (4, 9), strict=True)])
    responses = Ragged.from_lists([[504, 3575, 282, 4649], [5860]])
    engine_laws(real, prompts=prompts, responses=responses)


def test_fp32_is_the_fp32_trainer(real: Engine, trainer: Engine):
    found = check(rollout=real, trainer=trainer, prompts=TEXTS, sampling=Sampling(max_tokens=16))
    assert found.verdict == "same"
    assert found.summary["logp_diff"]["mean"] < 1e-4


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7, top_p=0.8, repetition_penalty=1.2, max_tokens=8),
        Sampling(temperature=1.5, top_k=20, min_p=0.05, logprobs="raw", max_tokens=8),
        Sampling(temperature=0, repetition_penalty=1.2, max_tokens=8),
    ],
    ids=["processed", "raw", "greedy"],
)
def test_every_setting_means_what_it_means_to_the_trainer(real: Engine, trainer: Engine, sampling: Sampling):
    prompts = Ragged.from_lists([real.encode(text) for text in TEXTS])
    run = real.generate(prompts, sampling)
    expected = trainer.score(run["prompt_ids"], run["response_ids"], sampling=sampling).logp.values
    # at the edge of a kept set the two engines may round to either side
    close = np.isclose(run["rollout_logp"].values, expected, atol=1e-3)
    assert close.mean() > 0.95


def test_the_generation_config_gives_end_tokens_only_and_is_named(real: Engine):
    run = real.generate(Ragged.from_lists([real.encode(text) for text in TEXTS]), Sampling(max_tokens=32, seed=1))
    assert run.rollout.extra["generation_config_not_applied"] == {"repetition_penalty": 1.3, "temperature": 0.6}
    for ids, reason in zip(run["response_ids"], run["finish_reason"], strict=True):
        assert (ids[-1] in (2, 30)) == (reason == "stop")
        assert not np.isin(ids[:-1], (2, 30)).any()
    assert (run["finish_reason"] == "stop").any()


def test_both_sides_declare_the_same_files(real: Engine, trainer: Engine):
    mine, theirs = real.describe(Sampling()), trainer.describe(Sampling())
    assert (mine.weights, mine.tokenizer, mine.template) == (theirs.weights, theirs.tokenizer, theirs.template)
    assert (mine.engine, mine.dtype, mine.extra["eager"]) == ("vllm", "float32", True)
    assert json.dumps(mine.as_dict())


def test_its_prompts_are_the_trainers(real: Engine, trainer: Engine):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert real.encode(chat) == trainer.encode(chat)
    assert real.encode("Hi") == trainer.encode("Hi")


def test_log_prob_semantics_are_told_by_the_values(real: Engine, trainer: Engine):
    prompts = Ragged.from_lists([real.encode(text) for text in TEXTS * 2])
    warm = Sampling(temperature=0.7, max_tokens=24)
    for sampling, expected in ((warm, 0.7), (replace(warm, logprobs="raw"), 1.0)):
        run = real.generate(prompts, sampling)
        other = "raw" if sampling.logprobs == "processed" else "processed"
        lie = replace(run, rollout=replace(run.rollout, sampling=replace(sampling, logprobs=other)))
        honest, found = infer(run, trainer=trainer), infer(lie, trainer=trainer)
        assert honest is not None
        assert found is not None
        assert (honest.status, found.status) == ("agrees", "disagrees")
        assert found.found.temperature == pytest.approx(expected, rel=0.01)


def test_a_chunked_prefill_takes_more_steps(real: Engine):
    scheduler, steps = vllm_load.scheduler_of(real.llm), []
    plain, prompt = scheduler.schedule, Ragged.from_lists([real.encode(TEXTS[3])])
    scheduler.schedule = lambda *a, **k: steps.append(1) or plain(*a, **k)
    try:
        real.score(prompt, Ragged.from_lists([[504]]))
        whole, steps[:] = len(steps), []
        real.ways()["chunked prefill"](prompt, Ragged.from_lists([[504]]))
    finally:
        del scheduler.schedule
    assert len(steps) > whole


def test_all_paths_hold_in_float32(real: Engine, trainer: Engine):
    prompts = Ragged.from_lists([real.encode(text) for text in TEXTS[:2]])
    found = paths(rollout=real, trainer=trainer, prompts=prompts, max_tokens=4)
    assert found.breaks == {}
    assert {"rollout chunked prefill", "rollout next token, prefix cached", "trainer packed"} <= set(found.names)
    assert np.nanmax(found.mean_abs) < 1e-4


def test_bad_calls_are_refused(real: Engine):
    one = Ragged.from_lists([[1, 2]])
    with pytest.raises(InputError, match="takes 511 at most"):
        real.score(one, Ragged.from_lists([[5] * 511]))
    with pytest.raises(InputError, match="raise top"):
        real.score(one, one, top=50)
    with pytest.raises(EngineError, match="no entropy"):
        real.score(one, one, entropy=True)


def test_eager_and_compiled_at_once_is_refused():
    with pytest.raises(InputError, match="exclude each other"):
        engine("vllm:anywhere", eager=True, compiled=True)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/nowhere", "no model at"),
        ("model.gguf", "is a GGUF file, but vLLM needs a folder with safetensors; make one with"),
        ("", "no model at"),
        ("a/b/c", "no model at"),
    ],
)
def test_a_path_that_is_no_model_is_refused(path: str, sentence: str):
    with pytest.raises(InputError, match=sentence):
        vllm_load.build(path, {})


def test_a_folder_without_config_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"no config\.json"):
        vllm_load.build(str(tmp_path), {})


def test_a_broken_folder_is_one_sentence(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EngineError, match="vLLM could not load"):
        vllm_load.build(str(tmp_path), {"dtype": "float32"})


def test_an_old_vllm_is_refused_by_both_versions(monkeypatch: pytest.MonkeyPatch):
    old = ModuleType("vllm")
    old.__version__, old.LLM = "0.9.2", object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", old)
    with pytest.raises(EngineError, match=r"0\.9\.2 is older than 0\.10\.2"):
        vllm_load.imported()


def test_a_missing_vllm_is_a_pip_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingDependencyError, match="pip install"):
        vllm_load.imported()


def test_an_answer_that_is_one_short_is_refused():
    prompts, responses = Ragged.from_lists([[1, 2]]), Ragged.from_lists([[3, 4]])
    entry = SimpleNamespace(logprob=-1.0, rank=1)
    with pytest.raises(EngineError, match="gave 3 prompt log-probs for the 4 tokens"):
        read_rows(prompts, responses, [[None, {2: entry}, {3: entry}]], 0)
