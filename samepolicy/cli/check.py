"""`samepolicy check`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer

from samepolicy.cli import engines, folders, options, output
from samepolicy.errors import InputError

EPILOG = engines.EPILOG.format(how="--NAME for both sides, --rollout-NAME or --trainer-NAME for one")


class CLASS(engines.EngineCommand):
    """Takes the engines' options for the rollout, the trainer, or both."""

    sides: ClassVar[tuple[str, ...]] = ("rollout", "trainer", "")


def _engine(told: str) -> Any:
    """An option about the engines."""
    return typer.Option(help=told, rich_help_panel=options.ENGINES)


def _sampling(told: str, *names: str) -> Any:
    """An option about what is sampled."""
    return typer.Option(*names, help=told, rich_help_panel="Prompts and sampling")


Model = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="The model of both sides: a folder, a .gguf file, a hub name.")
]


def command(
    model: Model = None,
    rollout: Annotated[str | None, _engine("The engine that samples, as kind:path.")] = None,
    trainer: Annotated[str | None, _engine("The engine that scores, as kind:path.")] = None,
    rollout_dtype: Annotated[str | None, _engine("The rollout's dtype, such as bfloat16.")] = None,
    trainer_dtype: Annotated[str | None, _engine("The trainer's dtype.")] = None,
    device: options.Device = None,
    trust_remote_code: options.Trust = False,
    prompts: Annotated[
        Path | None, _sampling("A .txt or .jsonl file with a prompt a line; 16 short ones unless given.")
    ] = None,
    samples: Annotated[int, _sampling("Responses to each prompt.")] = 1,
    max_tokens: Annotated[int, _sampling("Longest response, in tokens.")] = 64,
    seed: Annotated[int, _sampling("Seed of the sampler.")] = 0,
    temperature: Annotated[
        float, _sampling("Temperature; 0 is greedy.", "--temperature", "--rollout-temperature")
    ] = 1.0,
    top_p: Annotated[float, _sampling("Keep the smallest set of tokens with this probability.")] = 1.0,
    top_k: Annotated[int, _sampling("Keep this many most likely tokens; 0 keeps all.")] = 0,
    min_p: Annotated[float, _sampling("Keep tokens with this share of the likeliest one's probability.")] = 0.0,
    repetition_penalty: Annotated[float, _sampling("Penalty on tokens already seen; 1 is off.")] = 1.0,
    logprobs: Annotated[
        Literal["processed", "raw"], _sampling("Log-probs after these settings, or before.")
    ] = "processed",
    trainer_temperature: Annotated[
        float | None, _sampling("Temperature of the trainer's log-probs; the rollout's unless given.")
    ] = None,
    out: options.Out = None,
    everything: options.Everything = False,
    as_json: options.AsJson = False,
) -> None:
    """Check whether a rollout engine and a trainer are the same policy.

    The rollout engine samples, the trainer scores the very same token ids, and the gap is judged against the rounding
    that is measured on these tokens.
    """
    from samepolicy.cli.prompts import read_prompts
    from samepolicy.diagnose import check
    from samepolicy.records.side import Sampling
    from samepolicy.report import data, text

    sampling = Sampling(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        logprobs=logprobs,
        max_tokens=max_tokens,
        seed=seed,
    )
    theirs = None if trainer_temperature is None else replace(sampling, temperature=trainer_temperature)
    asked = read_prompts(prompts)
    shared = {"device": device, "trust_remote_code": trust_remote_code}
    wanted = [
        (_spec(rollout, model, "rollout"), engines.choices("rollout", dtype=rollout_dtype, **shared)),
        (_spec(trainer, model, "trainer"), engines.choices("trainer", dtype=trainer_dtype, **shared)),
    ]
    folders.refuse(out)
    with output.progress(quiet=as_json) as tell, _kept(out) as keep:
        sampler, scorer = _load(wanted, tell)
        found = check(
            rollout=sampler,
            trainer=scorer,
            prompts=asked,
            sampling=sampling,
            trainer_sampling=theirs,
            samples=samples,
            progress=tell,
            keep=keep,
        )
    if out is not None:
        folders.finish(found.run, out)
    output.show(text.diagnosis(found, everything=everything), data.of_diagnosis(found), as_json=as_json)
    raise typer.Exit(found.exit_code)


def _spec(given: str | None, model: str | None, side: str) -> str:
    """The engine of one side."""
    if given is None and model is None:
        raise InputError(f"The {side} has no engine; give a MODEL, or both --rollout and --trainer.")
    return given if given is not None else engines.spec(str(model))


def _load(wanted: list[tuple[str, dict[str, Any]]], tell: output.Tell) -> list[Any]:
    """Both engines; one that is asked for twice is loaded once."""
    from samepolicy.engines.base import engine

    loaded: list[Any] = []
    for i, (spec, chosen) in enumerate(wanted):
        tell(f"loading {spec}", i, len(wanted))
        loaded.append(loaded[0] if i and wanted[0] == wanted[i] else engine(spec, **chosen))
    return loaded


@contextmanager
def _kept(out: Path | None) -> Iterator[Any]:
    """What keeps the rollouts as soon as they are there; if the rest fails, it says where they are."""
    kept: list[Path] = []

    def keep(run: Any) -> None:
        if out is not None:
            folders.keep(run, out)
            kept.append(out)

    try:
        yield keep
    except BaseException:
        for folder in kept:
            output.note(
                f"The rollouts are kept in {folder}; `samepolicy score {folder} --engine …` goes on from there."
            )
        raise
