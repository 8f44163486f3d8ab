"""One recorded batch under every correction, part by part."""

from collections.abc import Iterable, Sequence
from typing import get_args

from samepolicy.errors import InputError
from samepolicy.records.run import Run
from samepolicy.summary import Summary, measure
from samepolicy.whatif.gathered import Gather, Gathered
from samepolicy.whatif.result import DivideBy, WhatIf
from samepolicy.whatif.rules import Rule


def whatif(
    run: Run | Iterable[Run],
    rules: Sequence[Rule | str] | None = None,
    *,
    sweeps: Sequence[Rule | str] = (),
    divide_by: DivideBy = "mask",
    seed: int = 0,
) -> WhatIf:
    """Say what each correction would do to a recorded batch, before anything is trained with it.

    For every rule: the share of tokens and responses kept, clipped and dropped, what the weights are worth (ESS, Pareto
    k, mean, max), which responses fall first, and, where the run has advantages, bias and variance of the surrogate
    mean(w·A) by a bootstrap over prompts. Raw statistics of the same batch stand beside them.

    Args:
        run: the run, or its parts one after another (`stream`), of which only one is in memory at a time. Rules that
            look at a whole batch (`Normalise`, `SecondMoment`) take each training step of a part for a batch.
        rules: what to try, presets by their names; by default every preset that the run's columns allow. No correction
            and full importance weights are tried in any case.
        sweeps: what to try at seven thresholds around its own, too.
        divide_by: what a loss divides by: "mask", all tokens under the mask, or "kept", those that the rule leaves in.
        seed: seed of the bootstrap.

    Returns:
        The outcomes and an advice. Responses to one prompt (`group`) are one unit of the bootstrap; without groups
        each response is. Beyond 16,384 prompts the units are as many random groups of prompts.

    Raises:
        MissingColumnError: a side's log-probs are missing, or a column that a rule which was asked for needs.
        InputError: no run at all, or an unknown divide_by.

    >>> from samepolicy.demo import recorded
    >>> found = whatif(recorded())
    >>> found.advice.rule, found["tis"].kept, found["tis"].clipped
    ('none', 1.0, 0.0)
    """
    if divide_by not in get_args(DivideBy):
        raise InputError(f"There is no divide_by={divide_by!r}; choose mask or kept.")
    gather = Gather(None if rules is None else tuple(rules), tuple(sweeps))
    gathered: Gathered | None = None
    summary, first = Summary.empty(), 0
    for one in [run] if isinstance(run, Run) else run:
        found = gather(one, first)
        gathered = found if gathered is None else gathered + found
        summary, first = summary + measure(one), first + len(one)
    if gathered is None:
        raise InputError("There is no run to look at; give at least one.")
    return gathered.result(summary, divide_by, seed)
