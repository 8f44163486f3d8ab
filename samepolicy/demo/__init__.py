"""A recorded run of a real model, and the prompts it was sampled from; both travel inside the package."""

from pathlib import Path

from samepolicy.records.run import Run
from samepolicy.records.store import read

PROMPTS = Path(__file__).with_name("prompts.txt")
"""Sixteen short user messages, one a line: what `check` samples from unless it is told otherwise."""

RECORDED = Path(__file__).with_name("run")
"""The run folder that `record.py` wrote."""


def recorded() -> Run:
    """The recorded run: real vLLM and the hf trainer, both SmolLM2-135M in bfloat16, with all that a verdict needs.

    >>> run = recorded()
    >>> len(run), run.rollout.dtype, "trainer_logp" in run
    (16, 'bfloat16', True)
    """
    return read(RECORDED)
