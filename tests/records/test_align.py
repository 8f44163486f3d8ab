"""Alignment of two id sequences, and runs cut to the tokens that both sides have."""

from difflib import SequenceMatcher

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samepolicy.errors import MissingColumnError, ShapeError
from samepolicy.records.align import align
from samepolicy.records.run import Run

IDS = st.lists(st.integers(0, 3), max_size=8)


@given(IDS, IDS)
def test_pairs_are_equal_and_rising_and_hold_the_common_head(a: list[int], b: list[int]) -> None:
    left, right = align(np.array(a, dtype=np.int64), np.array(b, dtype=np.int64))
    assert [a[i] for i in left] == [b[j] for j in right]
    assert (np.diff(left) > 0).all()
    assert (np.diff(right) > 0).all()
    head = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert left[:head].tolist() == right[:head].tolist() == list(range(head))


@given(IDS, st.data())
def test_one_token_put_in_is_the_only_one_left_out(a: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(a)))
    longer = [*a[:at], 99, *a[at:]]
    left, right = align(np.array(a, dtype=np.int64), np.array(longer))
    assert left.tolist() == list(range(len(a)))
    assert right.tolist() == [i for i in range(len(longer)) if i != at]


def test_blocks_are_difflibs_where_the_ends_differ() -> None:
    a, b = [9, 1, 2, 3, 5, 1, 8], [7, 1, 2, 3, 4, 1, 6]
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    left, right = align(np.array(a), np.array(b))
    assert left.tolist() == [x.a + i for x in blocks for i in range(x.size)]
    assert right.tolist() == [x.b + i for x in blocks for i in range(x.size)]


def test_an_aligned_run_has_equal_lengths_and_counts_what_it_left_out() -> None:
    run = Run.from_lists(
        prompt_ids=[[0], [0]],
        response_ids=[[5, 6, 7, 8], [1, 2]],
        mask=[[1, 1, 0, 1], [1, 1]],
        rollout_logp=[[-5.0, -6.0, -7.0, -8.0], [-1.0, -2.0]],
        trainer_response_ids=[[5, 7, 8, 9], [1, 2]],
        trainer_logp=[[-50.0, -70.0, -80.0, -90.0], [-10.0, -20.0]],
        trainer_top_ids=[[[5], [7], [8], [9]], [[1], [2]]],
        rollout_top_ids=[[[5], [6], [7], [8]], [[1], [2]]],
        mine=[[0, 1, 2, 3], [4, 5]],
        reward=[1.0, 2.0],
    )
    cut = run.aligned()
    assert cut["response_ids"].values.tolist() == [5, 7, 8, 1, 2]
    assert cut["trainer_top_ids"].values.tolist() == cut["rollout_top_ids"].values.tolist() == [[5], [7], [8], [1], [2]]
    assert (cut["trainer_logp"].values == 10 * cut["rollout_logp"].values).all()
    assert cut["mine"].values.tolist() == [0, 2, 3, 4, 5]
    assert cut.lengths.tolist() == [3, 2]
    assert cut["prompt_ids"].values.tolist() == [0, 0]
    assert "trainer_response_ids" not in cut
    assert cut.info["coverage"] == {"aligned": 4, "rollout_tokens": 5, "trainer_tokens": 5}
    twice = Run.concat([cut, cut])
    assert twice.info["coverage"] == {"aligned": 8, "rollout_tokens": 10, "trainer_tokens": 10}
    plain = cut.select([1, 0, 1])
    assert Run.concat([cut, plain]).info["coverage"] == {"aligned": 10, "rollout_tokens": 11, "trainer_tokens": 11}
    assert "coverage" not in plain.info


def test_without_trainer_ids_nothing_is_cut() -> None:
    run = Run.from_lists(response_ids=[[1]], rollout_logp=[[-1.0]])
    assert run.aligned() is run
    with pytest.raises(MissingColumnError, match="response_ids"):
        Run.from_lists(trainer_response_ids=[[1]], trainer_logp=[[-1.0]]).aligned()


def test_trainer_columns_follow_the_trainers_ids() -> None:
    with pytest.raises(ShapeError, match="2 values in trainer_logp but 3 in trainer_response_ids"):
        Run.from_lists(rollout_logp=[[-1.0, -2.0]], trainer_response_ids=[[1, 2, 3]], trainer_logp=[[-1.0, -2.0]])


def test_a_long_pair_with_one_token_less_per_turn() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 500, 3000)
    gone = np.arange(100, 3000, 700)
    left, right = align(ids, np.delete(ids, gone))
    assert len(left) == len(right) == 3000 - len(gone)
