"""`samepolicy weights`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from samepolicy.cli import options, output

if TYPE_CHECKING:
    from samepolicy.weights import Comparison

SHOWN = 40
"""Tensors that are listed without --all."""

Spec = "a model folder, a .safetensors, .gguf or .bin file, hf:PATH, vllm:PATH, or a .json of fingerprints"


def command(
    a: Annotated[str, typer.Argument(metavar="A", help=f"A model, usually the trainer's: {Spec}.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other, usually the engine's.")],
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(help="An earlier state that a stale tensor may be equal to; oldest first, as often as needed."),
    ] = None,
    vllm_dtype: Annotated[str, typer.Option(help="The dtype that vllm:PATH is loaded in.")] = "auto",
    everything: Annotated[bool, typer.Option("--all", help="List every tensor, not those that differ.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Say which tensors of two models are not the same, and what became of them.

    Equal, equal after a cast, old, scaled, transposed, permuted, moved, zero, NaN, missing, of another shape, or
    different by how much. vllm:PATH loads vLLM and reads what its layers multiply by.

    Exit status: 0 same, also after a cast, 1 different, 2 wrong call or bad input.
    """
    from samepolicy.weights import compare

    with output.progress(quiet=as_json) as tell:
        models = [_opened(spec, vllm_dtype) for spec in (a, b)]
        found = compare(*models, checkpoints=[_opened(spec, vllm_dtype) for spec in checkpoint or ()], progress=tell)
    output.show(_view(found, everything=everything), found.as_dict(), as_json=as_json)
    raise typer.Exit(found.exit_code)


def _opened(spec: str, vllm_dtype: str) -> Any:
    """What to compare: a spec as it is, but vLLM loaded in the dtype asked for."""
    if not spec.startswith("vllm:"):
        return spec
    from samepolicy.weights.live import load_vllm

    return load_vllm(spec.removeprefix("vllm:"), dtype=vllm_dtype)


def _view(found: "Comparison", *, everything: bool) -> Any:
    """The verdict, the tensors worth a line, and the notes."""
    from rich.console import Group
    from rich.text import Text

    from samepolicy.report.tables import paragraph, rows, table

    listed = found.relations if everything else found.different[:SHOWN]
    lines = [(relation.name, relation.status, relation.detail) for relation in listed]
    parts: list[Any] = [Text(found.sentence, "green" if found.same else "bold red")]
    if lines:
        parts += [Text(), rows(table("tensor", "status", "detail", fixed=("status",)), lines)]
    if len(found.different) > len(listed):
        parts.append(paragraph(f"{len(found.different) - len(listed)} more; --all lists every tensor.", "dim"))
    return Group(*parts, *(paragraph(f"Note: {note}.", "dim") for note in found.notes))
