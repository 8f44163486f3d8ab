"""`samepolicy demo`."""

import typer

from samepolicy.cli import options, output


def command(everything: options.Everything = False, as_json: options.AsJson = False) -> None:
    """Show a verdict on a recorded run of a real model; needs no torch.

    Real vLLM sampled the packaged prompts from SmolLM2-135M in bfloat16, and the hf trainer scored the same tokens in
    one bfloat16 forward. The verdict is computed anew from the recorded log-probs.
    """
    from samepolicy.demo import recorded
    from samepolicy.diagnose import diagnose
    from samepolicy.report import data, text

    found = diagnose(recorded())
    output.show(text.diagnosis(found, everything=everything), data.of_diagnosis(found), as_json=as_json)
    raise typer.Exit(found.exit_code)
