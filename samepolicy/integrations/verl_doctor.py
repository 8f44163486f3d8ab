"""Does the monitor stand in this verl, and does a configuration ask for what it can give?"""

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any, Literal

from samepolicy.errors import CorruptFileError, InputError, MissingDependencyError
from samepolicy.integrations import verl_switches as switches

TESTED = "0.9.1"
CALLED = "calculate_debug_metrics"
CALLERS = ("trainer/ppo/v1/trainer_base.py", "trainer/ppo/ray_trainer.py", "experimental/separation/ray_trainer.py")
"""Where verl's trainers call it: v1, the legacy one, and the separated one, as of the tested version."""
CHECKED = "validate_config"
CHECKERS = ("trainer/main_ppo.py", "trainer/main_ppo_v0.py")
"""Where verl has its configuration checked, v1 and legacy; a correction is written into it there."""
ON = "+trainer.enable_token_level_prob_diff=True"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing looked at.

    Attributes:
        name: what.
        status: passed, failed, or not checked.
        why: the fact, and the way to mend it.
    """

    name: str
    status: Literal["passed", "failed", "not checked"]
    why: str


def examine(settings: Iterable[str] = ()) -> tuple[Check, ...]:
    """Look at the installed verl, the plugin and, where given, a configuration.

    Args:
        settings: YAML files and overrides as on verl's command line, later ones winning; none leaves the switches
            unchecked.

    Returns:
        One check for each of: version, plugin, call sites, switches.

    Raises:
        MissingDependencyError: verl is not installed.
        InputError: a file that is not there, or an override without `=`.
    """
    found = importlib.util.find_spec("verl")
    if found is None or found.origin is None:
        raise MissingDependencyError("verl is not installed; `pip install verl` installs it.")
    return (_version(), _plugin(), *_call_sites(Path(found.origin).parent), *_switches(tuple(settings)))


def _version() -> Check:
    """Which verl it is."""
    here = version("verl")
    same = here == TESTED
    why = f"verl {here}" if same else f"verl {here} is here; the monitor is tested with {TESTED}"
    return Check(name="version", status="passed" if same else "not checked", why=why)


def _plugin() -> Check:
    """Whether importing verl really attaches us."""
    if not any(e.value == "samepolicy.integrations.verl_plugin" for e in entry_points(group="verl.plugins")):
        why = "the installed samepolicy has no entry point in verl.plugins; install it again with pip"
        return Check(name="plugin", status="failed", why=why)
    from verl.utils.debug import metrics

    from samepolicy.integrations.verl_hook import MARK

    if not hasattr(metrics, CALLED):
        why = f"this verl has no verl.utils.debug.metrics.{CALLED}, so nothing is measured"
        return Check(name="plugin", status="failed", why=why)
    if hasattr(metrics.calculate_debug_metrics, MARK):
        return Check(name="plugin", status="passed", why="loaded by verl, around its debug metrics")
    why = "verl did not load it; look at VERL_USE_EXTERNAL_PLUGINS (auto, or a list that names samepolicy)"
    return Check(name="plugin", status="failed", why=why)


def _call_sites(root: Path) -> Iterator[Check]:
    """Whether each trainer still calls what we stand around, from a method, and whether configurations are checked."""
    for place in CALLERS:
        file = root / place
        lines = list(calls(file.read_text("utf-8"))) if file.is_file() else []
        why = f"called in line {lines[0]}" if lines else f"{CALLED} is not called from a method there any more"
        yield Check(name=f"call site {place}", status="passed" if lines else "failed", why=why)
    for place in CHECKERS:
        file = root / place
        checked = file.is_file() and CHECKED in {ast.unparse(call.func) for call in _all_calls(file.read_text("utf-8"))}
        why = "checks the configuration" if checked else f"{CHECKED} is not called, so a correction cannot be given"
        yield Check(name=f"call site {place}", status="passed" if checked else "failed", why=why)


def _all_calls(source: str) -> Iterator[ast.Call]:
    """Every call in a source."""
    yield from (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))


def calls(source: str) -> Iterator[int]:
    """The lines in which a method (a function with `self`) calls verl's debug metrics with one argument."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(a.arg == "self" for a in node.args.args):
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(CALLED) and len(call.args) == 1:
                    yield call.lineno


def _switches(settings: tuple[str, ...]) -> Iterator[Check]:
    """Whether a configuration asks for the monitor, and for what it needs."""
    if not settings:
        why = "give verl's YAML file or the overrides of the command line to have them checked"
        yield Check(name="switches", status="not checked", why=why)
        return
    config = load(settings)
    correction = switches.look(config, "trainer.samepolicy.correction")
    try:
        wanted = switches.read(config)
        if correction is not None:
            yield _correction(config)
    except InputError as error:
        yield Check(name="switches", status="failed", why=str(error))
        return
    if not wanted.asked and correction is not None:
        return
    if not wanted.asked:
        yield Check(name="switches", status="failed", why=f"nothing asks for the monitor; add {ON}")
        return
    faults = wanted.faults()
    for fault in faults:
        yield Check(name="switches", status="failed", why=fault)
    if not faults:
        kept = f"files go to {wanted.save_dir}" if wanted.save_dir else "no files (+trainer.prob_diff_save_dir=…)"
        yield Check(name="switches", status="passed", why=f"the monitor is on; {kept}")


def _correction(config: Any) -> Check:
    """Whether the correction that is asked for can be given."""
    from samepolicy.integrations.verl_loss_config import POLICY_LOSS, expand, read

    expand(config)
    asked = read(switches.look(config, POLICY_LOSS))
    return Check(name="correction", status="passed", why=f"{asked.correction} in verl's loss {asked.loss!r}")


def load(settings: Iterable[str]) -> Any:
    """YAML files and overrides as one configuration."""
    from omegaconf import OmegaConf

    parts = []
    for setting in settings:
        name, equals, _ = setting.partition("=")
        if equals:
            parts.append(OmegaConf.from_dotlist([setting.lstrip("+")]))
        elif not Path(name).is_file():
            raise InputError(f"{setting} is neither a file nor an override; give a YAML file or name=value.")
        else:
            parts.append(_yaml(Path(name)))
    return OmegaConf.merge(*parts)


def _yaml(file: Path) -> Any:
    """One YAML file."""
    from omegaconf import OmegaConf

    try:
        return OmegaConf.load(file)
    except Exception as error:
        what = type(error).__name__
        raise CorruptFileError(f"{file} is no YAML file ({what}); give verl's configuration.") from error
