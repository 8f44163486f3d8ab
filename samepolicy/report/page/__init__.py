"""The parts of a page, each from a run or a diagnosis to JSON."""
