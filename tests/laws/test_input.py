"""What is handed over to `measure_batch`: taken as it is meant, or refused in one sentence; never measured wrongly."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from samepolicy import Run, measure, measure_batch, measure_by
from samepolicy.blocks import Counts
from samepolicy.errors import InputError, MaskError, ShapeError
from tests.oracles.batches import batch

DATA = batch(3)
TOKENS = DATA["mask"].size
ROWS, TIME = DATA["mask"].shape
PACKED = {name: column.reshape(-1) for name, column in DATA.items()}


def refusal(error: type[Exception], **given: object) -> str:
    """The sentence of a refusal."""
    with pytest.raises(error) as caught:
        measure_batch(**given)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    return str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.tolist(),
        lambda x: x.astype(object),
        np.asfortranarray,
        lambda x: x[::-1, ::-1][::-1, ::-1],
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        torch.tensor,
        lambda x: torch.tensor(np.array(x.T)).T,
        lambda x: torch.tensor(x, dtype=torch.float64, requires_grad=True),
    ],
    ids=["lists", "objects", "column order", "strides", "slices", "torch", "torch transposed", "gradients"],
)
def test_any_form_of_the_same_numbers_gives_the_same(change):
    whole = measure_batch(**DATA)
    for names in (("trainer",), ("rollout", "mask"), tuple(DATA)):
        found = measure_batch(**{n: change(x) if n in names else x for n, x in DATA.items()})
        assert found.counts == whole.counts
        assert found["k3"]["mean"] == pytest.approx(whole["k3"]["mean"], rel=1e-12)


@pytest.mark.parametrize(
    "odd",
    [
        DATA["trainer"] + 0j,
        torch.tensor(DATA["trainer"] + 0j),
        DATA["trainer"].astype(str),
        DATA["trainer"].astype("M8[s]"),
        np.zeros((ROWS, TIME), dtype=[("a", float)]),
        np.full((ROWS, TIME), "x", dtype=object),
    ],
    ids=["complex", "torch complex", "text", "dates", "records", "objects"],
)
def test_what_is_no_real_number_is_refused(odd):
    assert "trainer_logp must hold real numbers" in refusal(InputError, **{**DATA, "trainer": odd})
    assert "The mask must hold real numbers" in refusal(InputError, **{**DATA, "mask": odd})


def test_lists_of_different_lengths_are_refused():
    assert "different lengths" in refusal(ShapeError, trainer=[[-1.0], []], rollout=[[-1.0], []], mask=[[1], []])


@pytest.mark.parametrize("name", ["trainer", "rollout", "mask"])
@pytest.mark.parametrize("alone", [None, -1.0, np.float64(-1)])
def test_a_lone_value_is_no_column(name, alone):
    refusal(ShapeError, **{**DATA, name: alone})


def test_a_missing_entry_is_a_finding_and_of_a_mask_refused():
    column = DATA["trainer"].astype(object)
    first = tuple(np.argwhere(DATA["mask"])[0])
    column[first] = None
    hidden = np.ma.masked_array(DATA["trainer"], mask=np.zeros((ROWS, TIME), dtype=bool))
    hidden[first] = np.ma.masked
    for given in (column, hidden):
        counts = measure_batch(**{**DATA, "trainer": given}).counts
        assert (counts.missing, counts.measured) == (1, counts.tokens - 1)
    mask = DATA["mask"].astype(object)
    mask[first] = None
    assert "only 0 and 1" in refusal(MaskError, **{**DATA, "mask": mask})


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 5.5, TOKENS],
        [0, np.nan, TOKENS],
        [1, 5, TOKENS],
        [0, 9, 5, TOKENS],
        [0, -5, TOKENS],
        [0, TOKENS + 5, TOKENS],
        [0, 5],
        [0, TOKENS + 1],
        [TOKENS],
        [],
        [[0, TOKENS]],
        TOKENS,
        [TIME] * ROWS,
        [False, True],
    ],
    ids=str,
)
@pytest.mark.parametrize("form", [np.asarray, torch.as_tensor, lambda x: x], ids=["NumPy", "torch", "list"])
def test_offsets_that_do_not_cut_the_tokens_are_refused(offsets, form):
    assert f"number of packed tokens ({TOKENS})" in refusal(ShapeError, **PACKED, offsets=form(offsets))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_offsets_of_any_whole_type_cut_alike(dtype):
    small = {name: column[: 3 * TIME] for name, column in PACKED.items()}
    cuts = [0, TIME, TIME, 3 * TIME]
    whole = measure_batch(**small, offsets=np.array(cuts))
    found = measure_batch(**small, offsets=torch.tensor(cuts, dtype=dtype))
    assert found.counts == whole.counts
    assert found.metrics["log_ppl_diff"] == whole.metrics["log_ppl_diff"]


@pytest.mark.parametrize("name", ["trainer_logp", "rollout_logp", "prob_diff"])
def test_a_side_cannot_be_given_twice(name):
    assert name in refusal(InputError, **DATA, **{name: DATA["rollout"]})


def test_a_column_that_is_none_is_not_given():
    assert measure_batch(**DATA, advantage=None).missing["sign_skew"] == ("advantage",)


def test_summaries_under_different_names_do_not_merge_into_half_a_batch():
    ours, swift = measure_batch(**DATA), measure_batch(**DATA, names="swift")
    for a, b in ((ours, swift), (swift, ours)):
        with pytest.raises(InputError, match="same names="):
            a + b
    with pytest.raises(InputError, match="names='swift'"):
        ours.flat("swift")
    nothing = replace(ours, counts=Counts(), statistics={}, missing={})
    assert (nothing + swift).flat("swift") == (swift + nothing).flat("swift") == swift.flat("swift")


def test_differences_that_none_can_be_are_left_out():
    found = measure(Run.from_lists(prob_diff=[[0.25, -0.5, 1.5, np.nan]]))
    assert (found.counts.measured, found["prob_diff"]["mean"]) == (1, 0.25)


def test_a_recorded_difference_does_not_replace_the_one_of_both_sides():
    sides = {"rollout_logp": [[np.log(0.5)]], "trainer_logp": [[np.log(0.4)]]}
    found = measure(Run.from_lists(**sides, prob_diff=[[0.9]]))
    assert found["prob_diff"]["mean"] == pytest.approx(0.1)


def test_responses_without_a_finish_reason_are_a_group_of_their_own():
    run = Run.from_lists(rollout_logp=[[-1.0], [-2.0]], trainer_logp=[[-1.0], [-2.0]], finish_reason=["stop", None])
    assert {name: g.counts.tokens for name, g in measure_by(run, "finish_reason").items()} == {
        "not recorded": 1,
        "stop": 1,
    }


def test_an_advantage_of_each_response_counts_for_all_of_its_tokens():
    sides = {"rollout_logp": [[-1.0, -2.0, -0.5], [], [-3.0]], "trainer_logp": [[-1.5, -2.0, -0.7], [], [-2.0]]}
    once = Run.from_lists(**sides, advantage=[0.5, 9.0, -2.0])
    spread = Run.from_lists(**sides, advantage=[[0.5, 0.5, 0.5], [], [-2.0]])
    assert once == spread
    d = np.array([-0.5, 0.0, -0.2, 1.0])
    expected = np.mean(-np.expm1(d) * np.array([0.5, 0.5, 0.5, -2.0]))
    assert measure(once)["sign_skew"]["mean"] == pytest.approx(expected, rel=1e-12)
