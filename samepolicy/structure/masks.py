"""What the mask shows: are there tokens at all, and is padding counted?"""

from collections.abc import Iterator

from samepolicy.records.run import Run
from samepolicy.structure.fact import Fact, Test
from samepolicy.structure.fact import counted as many
from samepolicy.structure.ids import declared, end_ids, ragged


def check(run: Run) -> Iterator[Fact]:
    """The facts of the mask rung."""
    yield _any_token(run)
    yield _padding(run)


def _any_token(run: Run) -> Fact:
    """Without a token under the mask there is nothing to compare."""
    mask = run.mask
    counted, empty = int(mask.values.sum()), sum(not row.any() for row in mask)
    if not counted:
        return Test("tokens counted", "mask").failed("no token is under the mask")
    rows = f", and none in {empty} of {many(len(run), 'response')}" if empty else f" in {many(len(run), 'response')}"
    why = f"{counted} of {many(len(mask.values), 'token')} are under the mask{rows}"
    return Test("tokens counted", "mask").passed(why)


def _padding(run: Run) -> Fact:
    """A sampler stops at the first end id, so a row of them at the end is padding and must not be counted."""
    it = Test("padding counted", "mask")
    fill = end_ids(run) | ({int(declared(run, "pad_id"))} if declared(run, "pad_id") is not None else set())
    if "response_ids" not in run or not fill:
        lacking = "response_ids are not recorded" if "response_ids" not in run else "no end or pad id is declared"
        why = f"{lacking}, so padding cannot be told from sampled tokens; declare extra['eos_ids']"
        return it.unchecked(why)
    bad = [i for i in range(len(run)) if _tail(run, i, fill) > 1]
    if bad:
        many = f"response {bad[0]} ends in {_tail(run, bad[0], fill)} end or pad ids"
        why = f"{len(bad)} of {len(run)} responses count padding: {many}"
        fix = "set the mask to 0 after the first end token of a response"
        return it.broken(why, fix=fix)
    return it.passed("no padding after an end token is counted")


def _tail(run: Run, index: int, fill: set[int]) -> int:
    """How many counted tokens at the end of a response are end or pad ids; 0 where it was cut by length."""
    if "finish_reason" in run and run["finish_reason"][index] == "length":
        return 0
    ids, mask = ragged(run, "response_ids")[index], run.mask[index]
    count = 0
    while count < len(ids) and mask[-1 - count] and int(ids[-1 - count]) in fill:
        count += 1
    return count
