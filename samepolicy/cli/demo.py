"""`samepolicy demo`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from samepolicy.cli import options, output

Cause = Annotated[
    str | None, typer.Argument(metavar="[CAUSE]", help="Make a small run with this fault, and diagnose that.")
]
Html = Annotated[
    Path | None, typer.Option("--out", "-o", help="An .html file for the report of it; replaces only a report.")
]


def command(
    cause: Cause = None, out: Html = None, everything: options.Everything = False, as_json: options.AsJson = False
) -> None:
    """Show a verdict on a recorded run of a real model, or a cause at work; needs no torch.

    Real vLLM sampled the packaged prompts from SmolLM2-135M in bfloat16, and the hf trainer scored the same tokens in
    one bfloat16 forward. The verdict is computed anew from the recorded log-probs. With the name of a cause, a toy
    engine makes a run with that fault, and the diagnosis is not told which.
    """
    from samepolicy.demo import recorded
    from samepolicy.diagnose import diagnose
    from samepolicy.report import data, html, text

    if out is not None:
        html.refuse(out)
    found = diagnose(recorded()) if cause is None else _made(cause)
    output.show(text.diagnosis(found, everything=everything), data.of_diagnosis(found), as_json=as_json)
    if out is not None:
        html.report(out, diagnosis=found)
        output.note(f"The report is in {out}.")
    raise typer.Exit(found.exit_code)


def _made(name: str) -> Any:
    """The diagnosis of a run that has this fault."""
    import numpy as np

    from samepolicy.causes import cause
    from samepolicy.diagnose import diagnose
    from samepolicy.engines.base import engine

    chosen = cause(name)
    run = chosen.reproduce(np.random.default_rng(0))
    return diagnose(run, trainer=engine("toy:", **chosen.reference), checkpoints=chosen.checkpoints)
