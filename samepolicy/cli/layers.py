"""`samepolicy layers`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from samepolicy.cli import engines, options, output

if TYPE_CHECKING:
    from samepolicy.layers import LayerComparison

EPILOG = engines.EPILOG.format(how="--NAME for both sides, --rollout-NAME or --trainer-NAME for one")


class CLASS(engines.EngineCommand):
    """Takes the engines' options for the rollout, the trainer, or both."""

    sides: ClassVar[tuple[str, ...]] = ("rollout", "trainer", "")


def _engine(told: str) -> Any:
    """An option about the engines."""
    return typer.Option(help=told, rich_help_panel=options.ENGINES)


def command(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="The model of both sides: a folder, or a hub name.")
    ] = None,
    rollout: Annotated[str, _engine("The rollout: vllm, vllm:PATH, or hf:PATH.")] = "vllm",
    trainer: Annotated[str | None, _engine("The trainer, as hf:PATH; MODEL unless given.")] = None,
    rollout_dtype: Annotated[str | None, _engine("The rollout's dtype, such as bfloat16.")] = None,
    trainer_dtype: Annotated[str | None, _engine("The trainer's dtype.")] = None,
    device: options.Device = None,
    trust_remote_code: options.Trust = False,
    prompts: Annotated[
        Path | None, typer.Option(help="A .txt or .jsonl file with a prompt a line; short ones unless given.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Take the sequences of this run instead, those with the largest gap first.")
    ] = None,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences to run.")] = 4,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of each sequence at most.")] = 128,
    decode: Annotated[
        int, typer.Option(min=0, help="Compare vLLM's decode steps after so many tokens; 0 compares its prefill.")
    ] = 0,
    nats: Annotated[bool, typer.Option(help="Attribute the gap to blocks, which takes some 30 forwards.")] = True,
    repro: Annotated[
        Path | None, typer.Option(help="A new folder to write the module that differs to, as a script.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="List every tap, not a line per layer.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Say at which layer and part two engines part, beyond rounding, and what each block costs in nats.

    Each step of the trainer runs on the rollout's own inputs and is compared with its own rounding, so an error is
    found where it enters and not where it shows.

    Exit status: 0 rounding only, 1 different, 3 inconclusive, 2 wrong call or bad input.
    """
    from samepolicy.engines.base import engine, split
    from samepolicy.layers import Ask, Capture, compare, write_repro

    specs = {
        "rollout": engines.of_side("rollout", rollout, model),
        "trainer": engines.of_side("trainer", trainer, model),
    }
    _refuse_kinds({side: split(spec)[0] for side, spec in specs.items()}, repro)
    own = {"rollout": {"dtype": rollout_dtype}, "trainer": {"dtype": trainer_dtype}}
    chosen = engines.of_sides(specs, own, device=device, trust_remote_code=trust_remote_code)
    asked = _prompts(prompts, run, sequences)
    with output.progress(quiet=as_json) as tell:
        tell("loading both engines", 0, 1)
        ours, theirs = (engine(specs[side], **chosen[side]) for side in ("trainer", "rollout"))
        ids = [row[:tokens] for row in asked(ours)]
        kept: list[Capture] = []
        found = compare(ours, theirs, ids, ask=Ask(nats=nats, decode_from=decode), progress=tell, keep=kept.append)
        if repro is not None and found.first:
            write_repro(ours, kept[0], found.first, repro)
    output.show(_view(found, repro, everything=everything), found.as_dict(), as_json=as_json)
    raise typer.Exit(found.exit_code)


def _refuse_kinds(kinds: dict[str, str], repro: Path | None) -> None:
    """Refuse, before anything is loaded, engines that cannot be looked into and a folder that holds something."""
    from samepolicy.errors import InputError

    for side, kind in kinds.items():
        known = ("hf", "vllm") if side == "rollout" else ("hf",)
        if kind not in known:
            raise InputError(
                f"The {side} is {kind!r}, whose layers are out of reach; it can be {' or '.join(known)}, which run in "
                "this process."
            )
    if repro is not None and repro.exists() and (not repro.is_dir() or any(repro.iterdir())):
        raise InputError(f"{repro} is there and not an empty folder, so nothing is written; give a new one.")


def _prompts(prompts: Path | None, run: Path | None, sequences: int) -> Callable[[Any], list[list[int]]]:
    """What gives token ids once the trainer is there."""
    if run is None:
        from samepolicy.cli.prompts import read_prompts

        asked = read_prompts(prompts)[:sequences]
        return lambda engine: [
            prompt if isinstance(prompt, list) and isinstance(prompt[0], int) else engine.encode(prompt)
            for prompt in asked
        ]
    rows = _of_run(run, sequences)
    return lambda _: rows


def _of_run(path: Path, sequences: int) -> list[list[int]]:
    """Prompt and response ids of the sequences of a run with the largest mean gap."""
    import numpy as np

    from samepolicy.ratio import log_ratio
    from samepolicy.records.store import read

    run = read(path)
    order = list(range(len(run)))
    if "trainer_logp" in run and "rollout_logp" in run:
        pairs = zip(run["trainer_logp"], run["rollout_logp"], strict=True)
        gaps = [float(np.nanmean(np.abs(log_ratio(trainer=t, rollout=r)))) if len(t) else 0.0 for t, r in pairs]
        order.sort(key=lambda row: -gaps[row])
    return [[*run["prompt_ids"][row].tolist(), *run["response_ids"][row].tolist()] for row in order[:sequences]]


def _view(found: "LayerComparison", repro: Path | None, *, everything: bool) -> Any:
    """The verdict, the taps, the ledger and the notes."""
    from rich.console import Group
    from rich.text import Text

    from samepolicy.report.tables import heading, number, paragraph

    style = {"rounding only": "green", "different": "bold red"}.get(found.verdict, "bold yellow")
    parts: list[Any] = [Text(found.sentence, style), Text(), _taps(found, everything=everything)]
    if found.ledger is not None and found.ledger.rows:
        parts += [heading("The gap by blocks", f"{number(found.gap)} nats per token in all"), _ledger(found)]
    for graft in found.grafts:
        parts.append(
            paragraph(
                f"With the rollout's values at {graft.tap} alone, {number(graft.left)} nats are left of "
                f"{number(found.gap)}; the other way round {number(graft.reverse)}."
            )
        )
    if found.causes:
        parts.append(paragraph(f"Leads: {', '.join(found.causes)} (samepolicy explain {found.causes[0]})."))
    if repro is not None and found.first:
        parts.append(paragraph(f"python {repro / 'repro.py'} runs the module of {found.first} alone."))
    return Group(*parts, *(paragraph(f"Note: {note}.", "dim") for note in found.notes))


def _taps(found: "LayerComparison", *, everything: bool) -> Any:
    """A line per tap, or per layer the step that is most floors off, and every step beyond rounding."""
    from samepolicy.layers import taps
    from samepolicy.report.tables import number, rows, table

    worst: dict[Any, Any] = {}
    for reading in found.readings:
        key = taps.layer_of(reading.tap) if taps.layer_of(reading.tap) is not None else reading.tap
        if key not in worst or reading.ratio > worst[key].ratio:
            worst[key] = reading
    listed = [r for r in found.readings if everything or r.beyond or r in worst.values()]
    names = ("tap", "plain error", "cosine", "step alone", "floor", "floors")
    lines = [
        (r.tap, number(r.relative, 3), f"{r.cosine:.6f}", number(r.step, 3), number(r.floor, 3), number(r.ratio, 3))
        for r in listed
    ]
    return rows(table(*names, numbers=names[1:], fixed=names[:1]), lines)


def _ledger(found: "LayerComparison") -> Any:
    """The blocks of the ledger."""
    from samepolicy.report.tables import number, rows, table

    names = ("from", "to", "nats", "signed", "closes")
    book = found.ledger.rows if found.ledger else ()
    lines = [(r.first or "ids", r.last, number(r.nats), number(r.signed), number(r.closes)) for r in book]
    return rows(table(*names, numbers=names[2:], fixed=names[:2]), lines)
