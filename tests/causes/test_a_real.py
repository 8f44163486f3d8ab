"""The causes that need a real tokenizer, on SmolLM2: its chat template taken apart, and text encoded again."""

from dataclasses import replace

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.causes import Reference, cause
from samepolicy.causes.rendering import Pieces, Rendered
from samepolicy.causes.text import Text
from samepolicy.diagnose.measured import measured
from samepolicy.diagnose.naming import name
from samepolicy.engines.base import Engine, engine
from samepolicy.floor import add_evidence
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling
from samepolicy.testing import smollm2_path

pytestmark = [pytest.mark.full, pytest.mark.e2e]

ASKED = (
    "Name a river",
    "Count to five",
    "What is rain",
    "Tell a joke",
    "Say hello",
    "Why is it so",
    "Sing",
    "Who am I",
)
SAMPLING = Sampling(temperature=1.2, max_tokens=12, seed=4)


@pytest.fixture(scope="module")
def model() -> Engine:
    return engine(f"hf:{smollm2_path()}", dtype="float32")


@pytest.fixture(scope="module")
def run(model: Engine) -> Run:
    prompts = Ragged.from_lists([model.encode(text) for text in ASKED], dtype=np.int64)
    return model.generate(prompts, SAMPLING)


def rendered(model: Engine, text: str, **options: object) -> list[int]:
    turns = [{"role": "user", "content": text}]
    return list(model.tokenizer.apply_chat_template(turns, return_dict=False, **options))


def test_the_template_comes_apart(model: Engine, run: Run):
    pieces = Pieces.of(Reference(run, model))
    assert set(pieces.closings) == {"with the generation prompt", "without the generation prompt", "no template"}
    assert pieces.openings["no system prompt"] == "<|im_start|>user\n"
    for text, ids in zip(ASKED, run["prompt_ids"], strict=True):
        shorter = pieces.changed(ids, Rendered(closing=pieces.closings["without the generation prompt"]))
        assert shorter.tolist() == rendered(model, text, add_generation_prompt=False)
        plain = pieces.changed(ids, Rendered(pieces.openings["no template"], ""))
        assert plain.tolist() == model.tokenizer(text)["input_ids"]


def test_another_system_prompt_and_earlier_thinking(model: Engine, run: Run):
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "<think>hm</think>\n\nyes"},
        {"role": "user", "content": "ok"},
    ]
    pieces, encode = Pieces.of(Reference(run, model)), model.tokenizer.apply_chat_template
    ids = np.array(encode(turns, add_generation_prompt=True, return_dict=False))
    default = pieces.changed(ids, Rendered(opening=pieces.openings["the template's default"]))
    assert default.tolist() == encode(turns[1:], add_generation_prompt=True, return_dict=False)
    turns[2]["content"] = "yes"
    bare = pieces.changed(ids, Rendered(thoughtless=True))
    assert bare.tolist() == encode(turns, add_generation_prompt=True, return_dict=False)


def test_ids_that_are_not_the_tokenizers_own(model: Engine, run: Run):
    text = Text(Reference(run, model))
    split = np.array([model.tokenizer.convert_tokens_to_ids(token) for token in ("h", "el", "lo")])
    assert text.again(run["prompt_ids"][0], split, "alone")[1].tolist() == model.tokenizer("hello")["input_ids"]
    whole = text.again(run["prompt_ids"][0], split, "with its prompt")
    assert np.concatenate(whole).tolist() == [*run["prompt_ids"][0], *model.tokenizer("hello")["input_ids"]]


@pytest.mark.e2e
def test_a_missing_generation_prompt_is_named(model: Engine, run: Run):
    prompts = [rendered(model, text, add_generation_prompt=False) for text in ASKED]
    logp = model.score(Ragged.from_lists(prompts, dtype=np.int64), run["response_ids"], sampling=SAMPLING).logp
    one = add_evidence(replace(run.with_columns(trainer_logp=logp), trainer=model.describe(SAMPLING)), model)
    (finding,) = name(one, measured(one), Reference(one, model), causes=[cause("template")]).findings
    assert (finding.cause, finding.side) == ("template", "trainer")
    assert finding.parameters["rendered"] == "closing: without the generation prompt"
    assert finding.explained == pytest.approx(1.0, abs=0.05)
