"""`samepolicy check`."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer

from samepolicy.cli import engines, folders, options, output

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
    rollout: Annotated[
        str | None, _engine("The engine that samples: kind:path, a kind (it takes MODEL), or http://HOST:PORT.")
    ] = None,
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
    top: Annotated[
        int, typer.Option(min=0, help="Compare whole distributions, too, over each side's so many most likely tokens.")
    ] = 0,
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
    from samepolicy.diagnose.likely import add_likely
    from samepolicy.records.side import Sampling
    from samepolicy.vocabulary import compare_distributions

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
    specs = {
        "rollout": engines.of_side("rollout", rollout, model),
        "trainer": engines.of_side("trainer", trainer, model),
    }
    own = {"rollout": {"dtype": rollout_dtype}, "trainer": {"dtype": trainer_dtype}}
    chosen = engines.of_sides(specs, own, device=device, trust_remote_code=trust_remote_code)
    folders.refuse(out)
    wanted = [(spec, engines.listing(spec, top) | _journal(spec, out) | chosen[side]) for side, spec in specs.items()]
    installed(specs.values())
    _say_beforehand(wanted)
    with _answers(wanted), output.progress(quiet=as_json) as tell, _kept(out) as keep:
        sampler, scorer = _load(wanted, tell, model)
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
        run = add_likely(found.run, rollout=sampler, trainer=scorer, top=top) if top else found.run
    if out is not None:
        folders.finish(run, out)
        for _, mine in wanted:
            _remove(mine.get("journal"), out)
    for warning in found.warnings if as_json else ():  # else they are shown with the verdict
        output.note(f"Warning: {warning}")
    _show(found, compare_distributions(run) if top else None, everything=everything, as_json=as_json)
    raise typer.Exit(found.exit_code)


def _show(found: Any, likely: Any, *, everything: bool, as_json: bool) -> None:
    """The diagnosis, and the comparison of whole distributions where there is one."""
    from rich.console import Group

    from samepolicy.report import data, text, vocabulary

    view, value = text.diagnosis(found, everything=everything), data.of_diagnosis(found)
    if likely is not None:
        view, value = Group(view, vocabulary.comparison(likely)), {**value, "vocabulary": likely.as_dict()}
    output.show(view, value, as_json=as_json)


def installed(specs: Iterable[str]) -> None:
    """Refuse engines whose packages are missing, before the first of them loads a model."""
    from importlib import import_module

    from samepolicy.engines.base import kinds, split

    for kind in {split(spec)[0] for spec in specs} & set(kinds()):
        getattr(import_module(f"samepolicy.engines.{kind}"), "installed", lambda: None)()


def _journal(spec: str, out: Path | None) -> dict[str, str]:
    """The option that keeps a server's answers beside the run's folder, until the run is there."""
    from samepolicy.engines.base import options_of, split

    if out is None or "journal" not in options_of(split(spec)[0]):
        return {}
    _beside(out).parent.mkdir(parents=True, exist_ok=True)
    return {"journal": str(_beside(out))}


def _say_beforehand(wanted: list[tuple[str, dict[str, Any]]]) -> None:
    """Say what would otherwise be learnt after a long wait."""
    from samepolicy.engines.base import split

    servers = [chosen for spec, chosen in wanted if split(spec)[0] == "server"]
    if any("dtype" not in chosen for chosen in servers):
        output.note(
            "No server tells its dtype, and without it rounding is not known; declare it, as in --rollout-dtype."
        )
    for file in {chosen["journal"] for chosen in servers if "journal" in chosen}:
        if Path(file).is_file() and Path(file).stat().st_size:
            output.note(f"Answers of an earlier call are in {file} and are not asked again; remove it to start anew.")


def _beside(out: Path) -> Path:
    """Where answers are kept until the run is there.

    >>> str(_beside(Path("runs/a")))
    'runs/a.journal'
    """
    named = out if out.name else out.absolute()
    return named.with_name(f"{named.name}.journal")


def _remove(journal: str | None, out: Path) -> None:
    """Remove the journal that nobody named, now that the run holds what it held."""
    if journal == str(_beside(out)):
        Path(journal).unlink(missing_ok=True)


def _load(wanted: list[tuple[str, dict[str, Any]]], tell: output.Tell, model: str | None = None) -> list[Any]:
    """Both engines; a model that both sides name is read once, and the other side is a variant of it."""
    loaded: dict[int, Any] = {}
    shared = wanted[0][0] == wanted[1][0] and _exact(wanted[1][1]) and not _exact(wanted[0][1])
    order = (1, 0) if shared else (0, 1)
    for done, i in enumerate(order):
        spec, chosen = wanted[i]
        tell(f"loading {spec}", done, len(wanted))
        first = loaded.get(order[0])
        loaded[i] = engines.opened(spec, chosen, model) if first is None else _other(first, wanted[order[0]], wanted[i])
    return [loaded[i] for i in range(len(wanted))]


def _exact(chosen: dict[str, Any]) -> bool:
    """Whether an engine keeps the weights as its files have them, so that any other arithmetic can follow from it."""
    return chosen.get("dtype", "auto") in ("auto", "float32") and not chosen.get("weights_dtype")


def _other(first: Any, mine: tuple[str, dict[str, Any]], wanted: tuple[str, dict[str, Any]]) -> Any:
    """The second engine: the first one, a variant of it where only the arithmetic differs, or one of its own."""
    from samepolicy.engines.base import engine

    (spec, chosen), arithmetic = wanted, ("dtype", "weights_dtype")
    if wanted == mine:
        return first
    rest = [{k: v for k, v in options.items() if k not in arithmetic} for options in (mine[1], chosen)]
    told = chosen.get("dtype", "auto") != "auto"
    if spec == mine[0] and rest[0] == rest[1] and told and "head_dtype" not in chosen and first.capabilities.variants:
        return first.variant(dtype=chosen["dtype"], weights_dtype=chosen.get("weights_dtype"))
    return engine(spec, **chosen)


@contextmanager
def _answers(wanted: list[tuple[str, dict[str, Any]]]) -> Iterator[None]:
    """If the command is interrupted, say where the answers of a server are that have come."""
    try:
        yield
    except KeyboardInterrupt:
        for file in {chosen["journal"] for _, chosen in wanted if "journal" in chosen}:
            if Path(file).is_file():
                output.note(f"The answers so far are kept in {file}; the same command goes on from there.")
        raise


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
