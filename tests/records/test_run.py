"""Run: building, looking, choosing and joining; every number is compared with a plain loop over lists."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from samepolicy.arrays import Ragged
from samepolicy.errors import InputError, MaskError, MissingColumnError, ShapeError
from samepolicy.records.run import Run
from samepolicy.records.side import Side
from tests.records.strategies import plain, runs

ONE_KIND = ("rollout_logp", "mask", "prob_diff", "reward", "text")
"""Columns that concatenate whatever the other run has."""


def loop_unpad(values: np.ndarray, mask: np.ndarray) -> list[list[float]]:
    rows = []
    for row, valid in zip(values.tolist(), mask.tolist(), strict=True):
        last = max((i + 1 for i, v in enumerate(valid) if v), default=0)
        rows.append(row[:last])
    return rows


def lists(column: Ragged) -> list[list[float]]:
    return [row.tolist() for row in column]


@given(st.data(), hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=5))
def test_padded_arrays_are_cut_after_the_last_valid_position(data: st.DataObject, shape: tuple[int, int]) -> None:
    mask = data.draw(hnp.arrays(np.bool_, shape))
    logp = -np.arange(float(mask.size)).reshape(shape)
    dtype = data.draw(st.sampled_from([np.bool_, np.int64, np.float32, np.uint8]))
    run = Run.from_padded(mask=mask.astype(dtype), rollout_logp=logp, reward=np.zeros(shape[0]))
    assert lists(run["rollout_logp"]) == loop_unpad(logp, mask)
    assert lists(run.mask) == loop_unpad(mask, mask)
    assert run.tokens == mask.sum()
    assert len(run) == shape[0]


@given(st.lists(st.lists(st.floats(-9, 0), max_size=4), min_size=1, max_size=4))
def test_padding_and_cutting_gives_the_lists_back(rows: list[list[float]]) -> None:
    time = max(map(len, rows)) + 1
    padded = np.array([row + [7.0] * (time - len(row)) for row in rows])
    mask = np.array([[1] * len(row) + [0] * (time - len(row)) for row in rows])
    from_lists = Run.from_lists(rollout_logp=rows, trainer_logp=rows, mask=[[1] * len(row) for row in rows])
    assert Run.from_padded(mask=mask, rollout_logp=padded, trainer_logp=padded) == from_lists


def test_padded_top_columns_prompts_and_values_per_response() -> None:
    top = np.arange(12).reshape(2, 2, 3)
    run = Run.from_padded(
        mask=np.array([[1, 1], [0, 0]]),
        rollout_top_ids=top,
        prompt_ids=[[1, 2, 3], [4]],
        finish_reason=["stop", None],
        group=["a", "b"],
    )
    assert lists(run["rollout_top_ids"]) == [top[0].tolist(), []]
    assert lists(run["prompt_ids"]) == [[1, 2, 3], [4]]
    assert run["finish_reason"].tolist() == ["stop", None]
    assert run["group"].tolist() == ["a", "b"]


def test_float32_stays_and_ids_are_int64_and_none_is_nan() -> None:
    run = Run.from_lists(
        response_ids=[[1.0, 2.0], np.array([3], dtype=np.uint16)],
        rollout_logp=[np.array([-1, -2], dtype=np.float32), np.array([-3], dtype=np.float32)],
        trainer_logp=[[-1.0, None], [-3]],
        ref_logp=[np.array([-1, -2], dtype=np.float16), np.array([-3], dtype=np.float16)],
        reward=[1, None],
        step=[True, False],
    )
    dtypes = {name: getattr(column, "values", column).dtype for name, column in run.columns.items()}
    assert dtypes["response_ids"] == dtypes["step"] == np.int64
    assert dtypes["rollout_logp"] == dtypes["ref_logp"] == np.float32
    assert dtypes["trainer_logp"] == dtypes["reward"] == np.float64
    np.testing.assert_array_equal(run["trainer_logp"].values, [-1, np.nan, -3])
    np.testing.assert_array_equal(run["reward"], [1, np.nan])


def test_columns_of_other_names_are_kept_as_they_are() -> None:
    run = Run.from_lists(
        rollout_logp=[[-1.0], [-2.0, -3.0]],
        expert=[[3], [1, 2]],
        hit=[[True], [False, True]],
        router=[[[1, 2]], [[3, 4], [5, 6]]],
        piece=[["a"], ["b", "c"]],
        node=["x", "y"],
        seconds=[0.5, None],
        count=np.array([1, 2], dtype=np.int32),
    )
    assert run["expert"].values.tolist() == [3, 1, 2]
    assert run["hit"].values.dtype == bool
    assert run["router"].values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert run["piece"].values.tolist() == ["a", "b", "c"]
    assert run["node"].tolist() == ["x", "y"]
    assert run["count"].dtype == np.int64
    np.testing.assert_array_equal(run["seconds"], [0.5, np.nan])


def test_findings_are_not_refused() -> None:
    odd = [[np.nan, np.inf, -np.inf, 0.5, 0.0]]
    run = Run.from_lists(rollout_logp=odd, trainer_logp=odd, mask=[[0, 0, 0, 0, 0]])
    assert run.tokens == 0
    assert len(Run.from_lists(rollout_logp=[[-1.0]], trainer_logp=[[-1.0]])) == 1
    assert len(Run.from_lists(rollout_logp=[], trainer_logp=[])) == len(Run()) == 0


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        (
            {"rollout_logp": [[-1.0, -2.0]], "trainer_logp": [[-1.0]]},
            ShapeError,
            ["Sequence 0", "1 values", "2", "end_token"],
        ),
        (
            {"rollout_logp": [[-1.0]] * 2, "trainer_logp": [[-1.0], [-1.0] * 4]},
            ShapeError,
            ["Sequence 1", "4 values", "trainer_res"],
        ),
        ({"response_ids": [[1]], "mask": [[1, 0, 1]]}, ShapeError, ["mask", "response_ids"]),
        ({"rollout_logp": [[-1.0]], "reward": [1.0, 2.0]}, ShapeError, ["reward", "2 entries", "1"]),
        ({"rollout_logp": [[-1.0]], "odd": [[1.0, 2.0, 3.0]]}, ShapeError, ["odd", "3 values"]),
        ({"rollout_logp": [-1.0, -2.0]}, ShapeError, ["rollout_logp", "one list"]),
        ({"rollout_logp": [[-1.0], None]}, ShapeError, ["Sequence 1", "rollout_logp"]),
        ({"rollout_logp": [[-1.0, [-2.0]]]}, ShapeError, ["rollout_logp"]),
        ({"rollout_logp": [[[-1.0, -2.0]]]}, ShapeError, ["rollout_logp", "one value"]),
        ({"rollout_top_logp": [[-1.0, -2.0]]}, ShapeError, ["rollout_top_logp", "k values"]),
        ({"rollout_top_logp": [np.zeros((2, 0))]}, ShapeError, ["rollout_top_logp", "at least 1"]),
        ({"rollout_top_logp": [[[-1.0]], [[-1.0, -2.0]]]}, ShapeError, ["Sequence 1"]),
        ({"reward": [[1.0]]}, ShapeError, ["reward", "one single value"]),
        ({"reward": 1.0}, ShapeError, ["reward"]),
        ({"text": "a lone text"}, ShapeError, ["text"]),
        ({"rollout_logp": np.float64(1)}, ShapeError, ["rollout_logp"]),
        ({"mask": [[1, 2]]}, MaskError, ["2"]),
        ({"mask": [[1.0, np.nan]]}, MaskError, ["nan"]),
        ({"mask": [[1, None]]}, MaskError, ["None"]),
        ({"mask": [["yes"]]}, MaskError, ["yes"]),
        ({"response_ids": [[1.5]]}, InputError, ["response_ids", "whole"]),
        ({"response_ids": [[2**63]]}, InputError, ["response_ids", "whole"]),
        ({"step": [1, None]}, InputError, ["step", "missing"]),
        ({"rollout_logp": [["a"]]}, InputError, ["rollout_logp", "numbers"]),
        ({"rollout_logp": [[1j]]}, InputError, ["rollout_logp", "numbers"]),
        ({"text": [1]}, InputError, ["text"]),
    ],
)
def test_bad_lists_are_refused_in_one_sentence(columns: dict, error: type, words: list[str]) -> None:
    with pytest.raises(error) as caught:
        Run.from_lists(**columns)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert message.endswith(".")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ({"mask": np.ones((2, 1)), "rollout_logp": np.zeros((2, 3))}, ShapeError, ["[2, 3]", "[2, 1]"]),
        ({"mask": np.ones((2, 3)), "rollout_logp": np.zeros((2, 1))}, ShapeError, ["[2, 1]", "[2, 3]"]),
        ({"mask": np.ones((2, 3)), "rollout_logp": np.zeros(2)}, ShapeError, ["rollout_logp"]),
        ({"mask": np.ones((2, 3)), "reward": np.zeros((2, 3))}, ShapeError, ["reward"]),
        ({"mask": np.ones(3)}, ShapeError, ["[batch, time]", "[3]"]),
        ({"mask": np.ones((1, 2, 3))}, ShapeError, ["[1, 2, 3]"]),
        ({"mask": np.full((2, 2), 0.5)}, MaskError, ["0.5"]),
        ({"mask": np.ones((2, 2)), "prompt_ids": np.zeros((2, 5), int)}, ShapeError, ["prompt_ids", "padding"]),
        ({"mask": np.ones((1, 1)), "trainer_response_ids": [[1]]}, InputError, ["from_lists"]),
    ],
)
def test_bad_padded_arrays_are_refused(columns: dict, error: type, words: list[str]) -> None:
    with pytest.raises(error) as caught:
        Run.from_padded(**columns)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_missing_column_is_named_with_those_that_are_there() -> None:
    run = Run.from_lists(reward=[1.0])
    with pytest.raises(MissingColumnError, match="no column mask; it has: reward"):
        run["mask"]
    assert "mask" not in run
    assert "reward" in run


@given(runs())
def test_selecting_everything_changes_nothing_and_selection_is_a_loop(run: Run) -> None:
    assert run.select(np.arange(len(run))) == run == run.select(np.ones(len(run), dtype=bool))
    back = run.select(np.arange(len(run))[::-1])
    for name, column in run.columns.items():
        assert plain(back[name]) == plain(column)[::-1]


@pytest.mark.parametrize("which", [[3], [True], [-4]])
def test_a_selection_that_does_not_fit_is_refused(which: list) -> None:
    with pytest.raises(ShapeError, match="3 responses"):
        Run.from_lists(reward=[1.0, 2.0, 3.0]).select(which)
    assert len(Run.from_lists(reward=[1.0]).select([])) == 0
    assert Run.from_lists(mask=[[1], [1, 0]]).select(-1).lengths.tolist() == [2]


@given(runs(ONE_KIND, st.just(Side())), runs(ONE_KIND, st.just(Side())), runs(ONE_KIND, st.just(Side())))
def test_concat_is_associative_and_select_takes_it_apart(a: Run, b: Run, c: Run) -> None:
    whole = Run.concat([a, b, c])
    nested = Run.concat([Run.concat([a, b]), c])
    assert len(whole) == len(a) + len(b) + len(c)
    assert whole.tokens == a.tokens + b.tokens + c.tokens or not {"rollout_logp", "mask", "prob_diff"} & {
        *whole.columns
    }
    for name in whole.columns:
        assert plain(whole[name]) == plain(nested[name])
    part = whole.select(np.arange(len(a), len(a) + len(b)))
    for name in b.columns:
        assert plain(part[name]) == plain(b[name])


def test_concat_fills_only_what_has_a_value_for_missing() -> None:
    full = Run.from_lists(
        response_ids=[[1, 2]], rollout_logp=[[-1.0, -2.0]], mask=[[0, 1]], trainer_response_ids=[[1]],
        trainer_logp=[[-1.0]], text=["a"], reward=[1.0], info={"a": 1, "b": 2},
    )  # fmt: skip
    bare = Run.from_lists(response_ids=[[7, 8, 9]], info={"a": 1, "b": 3})
    both = Run.concat([full, bare])
    np.testing.assert_array_equal(both["rollout_logp"][1], [np.nan] * 3)
    np.testing.assert_array_equal(both["trainer_logp"][1], [np.nan] * 3)
    assert both["trainer_response_ids"][1].tolist() == [7, 8, 9]
    assert both["mask"][1].tolist() == [True] * 3
    assert both["text"].tolist() == ["a", None]
    np.testing.assert_array_equal(both["reward"], [1, np.nan])
    assert both.info == {"a": 1}
    with pytest.raises(InputError, match="column step"):
        Run.concat([full.with_columns(step=[1]), bare])
    with pytest.raises(InputError, match="at least one"):
        Run.concat([])
    with pytest.raises(InputError, match="one form"):
        Run.concat([full.with_columns(group=[1]), full.with_columns(group=["a"])])


def test_concat_refuses_other_sides_and_names_the_field() -> None:
    a, b = (Run.from_lists(reward=[1.0], rollout=Side(engine="hf", dtype=dtype)) for dtype in ("float32", "bfloat16"))
    with pytest.raises(InputError, match="rollout side declares dtype='bfloat16'"):
        Run.concat([a, b])


def test_a_run_prints_what_it_holds_and_survives_pickling() -> None:
    run = Run.from_lists(rollout_logp=[[-1.0, -2.0]], mask=[[1, 0]], rollout=Side(engine="hf"), info={"a": [1]})
    assert repr(run) == "Run(1 responses, 1 valid of 2 tokens)"
    assert str(run).splitlines()[1:] == ["  columns: mask, rollout_logp", "  rollout: engine=hf", "  trainer: —"]
    assert pickle.loads(pickle.dumps(run)) == run
    assert run != run.with_columns(reward=[1.0])
    assert run.with_columns(reward=[1.0]).without("reward", "absent") == run
    assert run != 1
    with pytest.raises(TypeError):
        hash(run)
