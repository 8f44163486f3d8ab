"""Results merged in a fixed binary tree, so that the sum is the same to the last bit in whatever order they come."""

from collections.abc import Iterator

from samepolicy.fleet.measured import Measured


class Tree:
    """Merges the results of numbered shards.

    Two neighbours merge as soon as both are there, so what waits is few nodes where results come roughly in order.

    Attributes:
        leaves: how many shards there are.
        nodes: what is merged so far: by (level, number) the result of shards number·2^level up to the next node's.

    >>> tree = Tree(3)
    >>> tree.add(2, Measured()), tree.add(0, Measured()), tree.add(0, Measured()), sorted(tree.missing())
    (True, True, False, [1])
    """

    def __init__(self, leaves: int, nodes: dict[tuple[int, int], Measured] | None = None) -> None:
        self.leaves = leaves
        self.nodes = dict(nodes or {})
        self._done = {leaf for place in self.nodes for leaf in self._under(place)}

    def add(self, number: int, found: Measured) -> bool:
        """Take in a shard's result; False, and nothing is counted, where that shard is in already."""
        if number in self._done:
            return False
        self._done.add(number)
        level = 0
        while (width := -(-self.leaves >> level)) > 1:
            sibling = number ^ 1
            if sibling < width:
                if (level, sibling) not in self.nodes:
                    break
                other = self.nodes.pop((level, sibling))
                found = other + found if number > sibling else found + other
            level, number = level + 1, number >> 1
        self.nodes[level, number] = found
        return True

    def missing(self) -> Iterator[int]:
        """Numbers of the shards whose result is not in yet."""
        return (number for number in range(self.leaves) if number not in self._done)

    @property
    def done(self) -> int:
        """How many shards are in."""
        return len(self._done)

    def total(self) -> Measured:
        """What is in so far, merged in the shards' order."""
        found = Measured()
        for _, node in sorted(self.nodes.items(), key=lambda item: self._under(item[0]).start):
            found += node
        return found

    def _under(self, place: tuple[int, int]) -> range:
        """The shards below a node."""
        level, number = place
        return range(number << level, min(number + 1 << level, self.leaves))
