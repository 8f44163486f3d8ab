"""Whatever order the results of shards come in, their sum has the same bits, and nothing is counted twice."""

from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samepolicy import measure
from samepolicy.fleet import Measured
from samepolicy.fleet.tree import Tree
from tests.fleet.folders import bits, part

LEAVES = [Measured(measure(part(step, rows=2, tokens=9)), skipped=(str(step),)) for step in range(11)]


@settings(max_examples=20)
@given(st.integers(0, 8).flatmap(lambda n: st.permutations(range(n))), st.randoms(use_true_random=False))
def test_any_order_gives_the_same_bits(order, random):
    straight, mixed = Tree(len(order)), Tree(len(order))
    for number in range(len(order)):
        assert straight.add(number, LEAVES[number])
    for done, number in enumerate(order, 1):
        assert mixed.add(number, LEAVES[number])
        again = random.choice(order[:done])
        assert not mixed.add(again, LEAVES[again])
    assert bits(mixed.total()) == bits(straight.total())
    assert mixed.total().skipped == tuple(str(number) for number in range(len(order)))
    assert len(mixed.nodes) == min(len(order), 1)


@pytest.mark.parametrize("leaves", range(12))
def test_the_sum_is_that_of_all(leaves: int):
    tree = Tree(leaves)
    for number in range(leaves):
        tree.add(number, LEAVES[number])
    plain = reduce(add, LEAVES[:leaves], Measured()).summary
    found = tree.total().summary
    assert found.counts == plain.counts
    for name, readouts in plain.metrics.items():
        assert found[name] == pytest.approx(readouts, rel=1e-12, abs=1e-15, nan_ok=True)


def test_a_second_result_of_a_shard_adds_nothing():
    tree = Tree(3)
    assert [tree.add(n, LEAVES[n]) for n in (1, 1, 0, 1, 0)] == [True, False, True, False, False]
    assert tree.total().summary.counts == (LEAVES[0] + LEAVES[1]).summary.counts
    assert (tree.done, list(tree.missing())) == (2, [2])


def test_few_nodes_wait_where_results_come_in_order():
    tree = Tree(1000)
    for number in range(1000):
        tree.add(number, Measured(skipped=(str(number),)))
        assert len(tree.nodes) <= 10
    assert tree.total().skipped == tuple(map(str, range(1000)))


def test_a_tree_goes_on_from_its_nodes():
    for stop in range(12):
        first = Tree(11)
        for number in np.random.default_rng(stop).permutation(11)[:stop].tolist():
            first.add(number, LEAVES[number])
        second = Tree(11, first.nodes)
        assert second.done == stop
        for number in list(second.missing()):
            assert second.add(number, LEAVES[number])
        whole = Tree(11)
        for number in range(11):
            whole.add(number, LEAVES[number])
        assert bits(second.total()) == bits(whole.total())
