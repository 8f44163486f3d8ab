"""A Summary reduced over 1, 2, 3 and 8 real processes on gloo is that of one process."""

import multiprocessing
import pickle

import numpy as np
import pytest

from samepolicy import Summary, measure_batch
from samepolicy.errors import InputError
from tests.distributed.ranks import SIZES, whole, work

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def batch():
    """24 rows of very different lengths; one rank's share holds a NaN, an infinity and a value above 0."""
    rng = np.random.default_rng(0)
    rollout = -rng.exponential(0.5, (24, 200))
    trainer = np.minimum(rollout + 0.1 * rng.standard_normal((24, 200)), 0)
    mask = np.arange(200) < rng.integers(0, 201, (24, 1))
    mask[:3] = [[True], [True], [False]] * np.ones(200, dtype=bool)
    trainer[0, :3] = [np.nan, -np.inf, 0.5]
    return {"trainer": trainer, "rollout": rollout, "mask": mask, "advantage": rng.standard_normal((24, 200))}


@pytest.fixture(scope="module")
def found(batch, tmp_path_factory):
    """What each of eight processes got, by rank and size of the group."""
    folder = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "samepolicy.distributed"])
    ranks = [context.Process(target=work, args=(r, str(folder), batch), daemon=True) for r in range(SIZES[-1])]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0] * SIZES[-1]
    return [pickle.loads((folder / f"rank{r}.pkl").read_bytes()) for r in range(SIZES[-1])]


def agree(one: Summary, other: Summary) -> None:
    """Counts, extremes and quantiles to the last bit, the rest to rounding."""
    assert one.counts == other.counts
    assert one.metrics.keys() == other.metrics.keys()
    for name, readouts in one.metrics.items():
        for key, value in readouts.items():
            exact = key in ("min", "max", "count") or key.startswith(("p5", "p9"))
            tolerance = {"rel": 0, "abs": 0} if exact else {"rel": 1e-12, "abs": 1e-15}
            assert other[name][key] == pytest.approx(value, nan_ok=True, **tolerance), (name, key)


@pytest.mark.parametrize("size", SIZES)
def test_uneven_ranks_give_what_one_process_gives(found, batch, size):
    for rank in range(size):
        agree(measure_batch(**batch), found[rank][size]["uneven"])


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_gets_the_same(found, size):
    states = [
        {n: [s.state.tobytes() for s in stats] for n, stats in found[r][size]["uneven"].statistics.items()}
        for r in range(size)
    ]
    assert all(s == states[0] for s in states)


@pytest.mark.parametrize("size", SIZES)
def test_a_reduction_is_two_collectives_of_few_bytes(found, size):
    for rank in range(size):
        gathered, broadcast = found[rank][size]["sent"]
        assert gathered == broadcast < 48_000


@pytest.mark.parametrize("size", SIZES)
def test_copies_are_counted_once(found, batch, size):
    agree(measure_batch(**batch), found[0][size]["copies"])


def test_a_metric_that_one_rank_has_covers_its_tokens(found, batch):
    alone, together = measure_batch(**batch), found[0][3]["some"]
    assert together["sign_skew"] == pytest.approx(alone["sign_skew"], rel=1e-12)
    assert together.counts.tokens == 3 * alone.counts.tokens


def test_a_metric_that_no_rank_has_says_what_it_lacks(found):
    assert found[0][8]["uneven"].missing["surprisal_gap"] == ("trainer_entropy",)


@pytest.mark.parametrize("size", SIZES)
def test_everywhere_is_true_only_where_all_say_so(found, size):
    assert {found[rank][size]["everywhere"] for rank in range(size)} == {(True, False)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", ["joined", "zigzag"])
def test_pieces_of_sequences_become_whole_again(found, size, way):
    for rank in range(size):
        joined = found[rank][size][way]
        assert [s.tolist() for s in joined] == [s.tolist() for s in whole(size)]


def test_without_a_process_group_the_sentence_says_what_to_do():
    from samepolicy.distributed import all_reduce

    with pytest.raises(InputError, match="init_process_group"):
        all_reduce(Summary.empty())
