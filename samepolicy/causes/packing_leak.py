"""Packed samples that see each other."""

from collections.abc import Iterator

import numpy as np
from numpy.random import Generator

from samepolicy.causes.base import POSSIBLE, Cause, Check, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import toy_run
from samepolicy.causes.model import changed_toy
from samepolicy.causes.settings import Settings
from samepolicy.engines.layout import Layout
from samepolicy.records.run import Run

LARGEST = 32
"""Samples that share a row, at most."""

CLEAN = 0.5
"""First samples of a row are beyond rounding by less than this share of what the others are."""

AS_CLEAN = 0.1
"""Where that share is smaller than this, packs are as clean as each other: a multiple always is."""

TRIED = 3
"""Packs that are scored."""


class PackingLeak(Cause):
    """Samples that are packed into one row attend to each other on one side.

    What happens    Several samples share a row without a mask between them: the attention kernel ignores cu_seqlens or
                    position resets, so that later samples read earlier ones as their context.
    How it shows    The first sample of every row is exact, later ones are off, worst at their start; by sample, not by
                    token.
    How to confirm  Score the same samples one per row; compare the second sample of a row with itself alone.
    How to fix      Use variable-length attention: flash_attention_2 (or _3) with position_ids that begin at 0 in each
                    sample, or cu_seqlens, or a block-diagonal mask with sdpa and eager. TRL: padding_free or packing
                    only with flash attention. verl: use_remove_padding=True with flash attention. ms-swift:
                    --packing true --attn_impl flash_attn. Megatron: PackedSeqParams with qkv_format="thd". vLLM and
                    SGLang keep requests apart by themselves.
    References      TRL pull request 3526 (packing with flash attention arguments against cross-contamination);
                    Krell et al., Efficient sequence packing without cross-contamination (2021)
    """

    rung = Rung.POSITIONS
    cost = 2
    separate = "score the second sample of a packed row alone"

    def check(self, evidence: Evidence) -> Check:
        """Excluded where no way of packing leaves the first samples clean."""
        return POSSIBLE if _packs(evidence) else Check(status="excluded")

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The packs whose first samples are cleanest, with positions that run on and with ones that begin again."""
        packs = _packs(evidence)[:TRIED]
        ways = [Layout(packed=pack, pack_positions=on) for pack in packs for on in (True, False)]
        best = evidence.best(Settings(layout=layout) for layout in ways)
        if best.layout is None:
            return
        layout, size = best.layout, _sizes(evidence)
        first = np.arange(len(size)) % layout.packed == 0
        on = "run on" if layout.pack_positions else "begin again"
        yield Undone(
            settings=best,
            parameters={"samples_per_row": layout.packed, "positions": on},
            sentence=(
                f"with {layout.packed} samples in a row that see each other, positions that {on}, the reference gives "
                f"what was recorded; mean abs gap {np.nanmean(size[first]):.2g} nats in the first samples of a row and "
                f"{np.nanmean(size[~first]):.2g} in the others"
            ),
        )

    def reproduce(self, rng: Generator) -> Run:
        """The trainer packs four samples into a row without a mask, positions beginning again."""
        return toy_run(rng, trainer=changed_toy(layout=Layout(packed=4, pack_positions=False)))


def _sizes(evidence: Evidence) -> np.ndarray:
    """Mean abs residual of each response, nats; NaN where nothing can be compared."""
    return _means(evidence, np.abs(evidence.residual))


def _means(evidence: Evidence, values: np.ndarray) -> np.ndarray:
    """The mean of some values over each response's tokens; NaN where nothing can be compared."""
    fine = evidence.comparable & np.isfinite(evidence.residual)
    sums = np.bincount(evidence.row[fine], weights=values[fine], minlength=len(evidence.run))
    count = np.bincount(evidence.row[fine], minlength=len(evidence.run))
    found: np.ndarray = np.where(count, sums / np.maximum(count, 1), np.nan)
    return found


def _packs(evidence: Evidence) -> list[int]:
    """Samples per row for which first samples are clean and others are not, cleanest first, then small packs."""
    beyond = np.maximum(_sizes(evidence) - _means(evidence, evidence.floor), 0.0)
    found = []
    for pack in range(2, min(len(beyond), LARGEST) + 1):
        first = np.arange(len(beyond)) % pack == 0
        mine, others = (beyond[which & np.isfinite(beyond)] for which in (first, ~first))
        if len(mine) and len(others) and np.median(others) > 0:
            share = float(np.quantile(mine, 0.5, method="higher") / np.median(others))
            found.append((max(share, AS_CLEAN), pack))
    return [pack for share, pack in sorted(found) if share < CLEAN]
