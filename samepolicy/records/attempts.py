"""Which rows count where training was resumed from a checkpoint and steps were recorded twice."""

import numpy as np

from samepolicy.records.run import Run

ATTEMPT = "attempt"
"""Column that says when the writing monitor began, in microseconds since 1970: one for all rows of one attempt."""


def newest(run: Run) -> Run:
    """The rows that count where training was resumed from a checkpoint: of each step, those of the last attempt.

    `read` and `stream` have already left the others out; this does the same to a run put together by other means.

    Args:
        run: a run as a monitor recorded it, with the columns `step` and `attempt`; any other is given back as it is.

    Returns:
        The run without the rows that a later attempt wrote again.

    >>> run = Run.from_lists(rollout_logp=[[-1.0], [-2.0], [-3.0]], step=[1, 2, 2], attempt=[10, 10, 20])
    >>> newest(run)["rollout_logp"].values.tolist()
    [-1.0, -3.0]
    """
    if ATTEMPT not in run or "step" not in run:
        return run
    _, step = np.unique(run["step"], return_inverse=True)
    last = np.zeros(step.max(initial=-1) + 1, dtype=np.int64)
    np.maximum.at(last, step, run[ATTEMPT])
    return run.select(run[ATTEMPT] == last[step])
