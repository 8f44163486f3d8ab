"""Making engines from a spec, and what is refused before any model runs."""

from pathlib import Path

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Capabilities, Engine, Scores, check_ids, check_prompts, engine, kinds, options_of
from samepolicy.errors import EngineError, InputError, ShapeError
from samepolicy.records.side import Sampling, Side


class Uniform(Engine):
    """An engine of one method: every one of ten ids is equally likely."""

    capabilities = Capabilities()

    def score(self, prompts, responses, *, sampling=Sampling(), entropy=False, top=0) -> Scores:
        return Scores(logp=responses.with_values(np.full(len(responses.values), -np.log(10), np.float32)))

    def describe(self, sampling) -> Side:
        return Side(engine="uniform", sampling=sampling)


def test_kinds_are_the_modules_with_a_load():
    assert {"hf", "toy"} <= set(kinds())
    assert "sampling" not in kinds()


def test_a_spec_without_a_kind_shows_how_to_write_it():
    with pytest.raises(InputError, match='write "hf:some/model"'):
        engine("some/model")


def test_an_unknown_kind_lists_the_kinds():
    with pytest.raises(InputError, match="hf,.* toy"):
        engine("tgi:model")


@pytest.mark.parametrize("kind", ["hf", "toy"])
def test_an_unknown_option_lists_the_options(kind: str):
    with pytest.raises(InputError, match="dtpye.*" + ", ".join(options_of(kind))):
        engine(f"{kind}:", dtpye="float32")


def test_an_unknown_dtype_lists_the_dtypes():
    for spec in ("hf:nowhere", "toy:"):
        with pytest.raises(InputError, match="'bf16' is not known; it can be .*bfloat16"):
            engine(spec, dtype="bf16")


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"seed": -1}, "seed must be 0 or more, but it is -1."),
        ({"seed": 1.0}, "seed must be a whole number, but it is 1.0."),
        ({"extra_bos": -5}, "extra_bos must lie in [0, 2048], but it is -5."),
        ({"temperature": 0}, "temperature must lie in (0, inf), but it is 0."),
        ({"stale": float("inf")}, "stale must lie in [0, inf), but it is inf."),
        ({"adapter": float("nan")}, "adapter must lie in [0, inf), but it is nan."),
        ({"adapter": "nan"}, "adapter must lie in [0, inf), but it is nan."),
        ({"adapter": "some/folder"}, "adapter must be a number, but it is 'some/folder'."),
        ({"hide_prompt": 1}, "hide_prompt must be True or False, but it is 1."),
    ],
)
def test_options_that_no_toy_has(option: dict[str, object], sentence: str):
    with pytest.raises(InputError) as caught:
        engine("toy:", **option)
    assert str(caught.value) == sentence


def test_options_may_be_numpys_numbers_and_paths():
    told = engine("toy:", seed=np.int64(3), weights_dtype=None, dtype=Path("bfloat16")).describe(Sampling())
    assert (told.model, told.dtype) == ("toy(seed=3)", "bfloat16")


def test_the_toy_has_no_path():
    with pytest.raises(InputError, match='write "toy:"'):
        engine("toy:model")


def test_one_method_is_an_engine_and_the_rest_is_refused_in_a_sentence():
    one = Uniform()
    ids = Ragged.from_lists([[1, 2], [3]])
    assert one.score(ids, ids).logp.values == pytest.approx(-np.log(10))
    for call in (
        lambda: one.generate(ids, Sampling()),
        lambda: one.encode("x"),
        lambda: one.decode([1]),
        lambda: one.variant(dtype="bfloat16"),
    ):
        with pytest.raises(EngineError, match=r"This engine \(Uniform\) cannot .*: .*\."):
            call()


def test_ids_are_checked():
    good = Ragged.from_lists([[1, 2], [3]])
    prompts, responses = check_ids(good, good, vocabulary=4, limit=4)
    assert prompts.values.dtype == responses.values.dtype == np.int64
    with pytest.raises(InputError, match="response of sequence 1 holds id 9, .* from 0 to 3"):
        check_ids(good, Ragged.from_lists([[1], [2, 9]]), vocabulary=4, limit=None)
    with pytest.raises(InputError, match="prompt of sequence 0 holds id -1"):
        check_ids(Ragged.from_lists([[-1], [2]]), good, vocabulary=4, limit=None)
    with pytest.raises(InputError, match="Sequence 0 has 4 tokens, but the model takes 3"):
        check_ids(good, good, vocabulary=4, limit=3)
    with pytest.raises(InputError, match="float64, but token ids are integers"):
        check_ids(good, Ragged.from_lists([[1.0], [2.0]]), vocabulary=4, limit=None)
    with pytest.raises(ShapeError, match="2 prompts but 1 responses"):
        check_ids(good, Ragged.from_lists([[1]]), vocabulary=4, limit=None)


def test_prompts_are_checked():
    with pytest.raises(InputError, match="Prompt 1 has no tokens"):
        check_prompts(Ragged.from_lists([[1], []]), vocabulary=4, limit=None, samples=1)
    with pytest.raises(InputError, match="samples must be a whole number, 1 or more"):
        check_prompts(Ragged.from_lists([[1]]), vocabulary=4, limit=None, samples=0)


def test_scores_print_what_they_are():
    ids = Ragged.from_lists([[1, 2], [3]])
    assert str(Uniform().score(ids, ids)) == "2 responses, 3 tokens, mean log-prob -2.3026 nats"
