"""Imports inside the package only point down, in the order of the table; functions' own imports count too."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import samepolicy

ROOT = Path(samepolicy.__file__).parent
LAYERS = (
    ("errors", "kinds", "arrays", "inputs", "ratio", "stats", "pareto", "blocks", "jumps"),
    ("metrics", "plan", "gathering", "kl", "corrections"),
    ("records", "vocabulary", "names", "summary", "grouping", "health", "trend", "distributed", "structure"),
    ("monitor", "whatif", "engines", "fleet", "weights"),
    ("layers", "floor", "causes", "semantics"),
    ("diagnose", "paths"),
    ("report",),
    ("integrations", "serve", "cli", "testing", "demo", "__main__"),
)
RANK = {unit: rank for rank, layer in enumerate(LAYERS) for unit in layer}


def unit_of(module: str) -> str:
    """`samepolicy.metrics.divergence` belongs to the unit `metrics`."""
    return [*module.split("."), ""][1]


def absolute(node: ast.ImportFrom, package: list[str]) -> str:
    """The module that a `from` import names, dots resolved."""
    parents = package[: len(package) + 1 - node.level] if node.level else []
    return ".".join([*parents, *([node.module] if node.module else [])])


def imported(module: str, is_package: bool, source: str) -> Iterator[str]:
    """Units of the package that a module's source imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, module.split(".") if is_package else module.split(".")[:-1])
            # `from samepolicy import measure` imports the module that holds the public name
            held = samepolicy._MODULE_OF
            names = [held.get(a.name, f"{base}.{a.name}") if base == "samepolicy" else base for a in node.names]
        else:
            continue
        yield from (unit_of(name) for name in names if name.split(".")[0] == "samepolicy")


def violations(sources: Mapping[str, str]) -> list[str]:
    """Sentences about imports that point up, units without a layer, and circles within a layer.

    A name ending in `.__init__` is a package.
    """
    found: list[str] = []
    graph: dict[str, set[str]] = {}
    for name, source in sorted(sources.items()):
        module = name.removesuffix(".__init__")
        unit = unit_of(module)
        if unit not in RANK:
            found.append(f"{module} has no layer: add {unit!r} to LAYERS")
            continue
        for other in imported(module, name.endswith(".__init__"), source):
            if other == "__version__":
                continue
            if other not in RANK:
                found.append(f"{module} imports {other!r}, which has no layer")
            elif RANK[other] > RANK[unit]:
                found.append(f"{module} imports {other!r}, which lies above it")
            elif other != unit:
                graph.setdefault(unit, set()).add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        found.append(f"these import each other: {' -> '.join(circle.args[1])}")
    return found


def package_sources() -> dict[str, str]:
    """Every module below the package except its own `__init__`, which only points at names."""
    files = sorted(set(ROOT.rglob("*.py")) - {ROOT / "__init__.py"})
    return {".".join(f.relative_to(ROOT.parent).with_suffix("").parts): f.read_text("utf-8") for f in files}


def test_imports_only_point_down():
    assert violations(package_sources()) == []


@pytest.mark.parametrize(
    ("name", "source", "sentence"),
    [
        ("samepolicy.stats", "from samepolicy.report import text", "imports 'report', which lies above it"),
        ("samepolicy.stats", "def f():\n    import samepolicy.cli.main", "imports 'cli', which lies above it"),
        ("samepolicy.stats", "from samepolicy import diagnose", "imports 'diagnose', which lies above it"),
        ("samepolicy.metrics.k", "from ..summary import measure", "imports 'summary', which lies above it"),
        ("samepolicy.metrics.__init__", "from ..floor import measure", "imports 'floor', which lies above it"),
        ("samepolicy.metrics.k", "from .. import floor", "imports 'floor', which lies above it"),
        ("samepolicy.utils", "", "has no layer"),
        ("samepolicy.stats", "import samepolicy.utils", "which has no layer"),
    ],
)
def test_a_made_up_fault_is_found(name: str, source: str, sentence: str):
    assert any(sentence in found for found in violations({name: source}))


def test_a_circle_within_a_layer_is_found():
    circle = {"samepolicy.arrays": "import samepolicy.stats", "samepolicy.stats": "from .arrays import Ragged"}
    assert any("import each other" in found for found in violations(circle))


def test_imports_down_and_within_a_unit_are_fine():
    fine = {
        "samepolicy.metrics.__init__": "from .base import metric\nfrom ..arrays import Array",
        "samepolicy.metrics.base": "import numpy\nfrom samepolicy import errors, __version__",
        "samepolicy.cli.main": "from samepolicy import measure",
    }
    assert violations(fine) == []
