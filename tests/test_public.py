"""The public names: sorted, lazy, documented; and what importing the package loads."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import samepolicy


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after running the code."""
    shown = f"{code}\nimport sys\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_loads_no_heavy_package():
    assert not loaded_by("import samepolicy") & {"torch", "transformers", "scipy", "pyarrow", "plotly", "rich", "typer"}


@pytest.mark.parametrize("name", ["measure", "measure_batch", "Run", "log_ratio", "diagnose"])
def test_public_names_load_no_torch(name: str):
    assert "torch" not in loaded_by(f"import samepolicy\nsamepolicy.{name}")


def test_names_are_sorted_and_without_doubles():
    assert samepolicy.__all__ == sorted(set(samepolicy.__all__))
    assert list(samepolicy._MODULE_OF) == sorted(samepolicy._MODULE_OF)
    assert set(samepolicy.__all__) <= set(dir(samepolicy))


def test_type_checkers_see_the_names_that_python_sees():
    tree = ast.parse(Path(samepolicy.__file__).read_text("utf-8"))
    (block,) = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert seen == samepolicy._MODULE_OF


@pytest.mark.parametrize("name", samepolicy.__all__)
def test_every_name_has_a_docstring(name: str):
    value = getattr(samepolicy, name)
    assert inspect.getdoc(value)
    assert value.__doc__ is not None, "a docstring of its own, not its base's"


@pytest.mark.parametrize("name", ["Run", "Summary", "Ragged", "Sampling", "Side", "Diagnosis"])
def test_every_public_method_has_a_docstring(name: str):
    cls = getattr(samepolicy, name)
    methods = [k for k, v in vars(cls).items() if callable(v) or isinstance(v, property | classmethod | staticmethod)]
    assert [k for k in methods if not k.startswith("_") and not inspect.getdoc(getattr(cls, k))] == []


@pytest.mark.parametrize("name", sorted(samepolicy._MODULE_OF))
def test_a_name_stays_itself_whatever_is_imported_first(name: str):
    module = importlib.import_module(samepolicy._MODULE_OF[name])
    assert getattr(samepolicy, name) is getattr(module, name)
    assert inspect.ismodule(getattr(samepolicy, name)) == (
        name == "plots"
    )  # the one name that is a module of functions


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'samepolicy' has no attribute 'unheard_of'"):
        samepolicy.unheard_of  # noqa: B018


def test_version_is_a_version():
    assert [part.isdecimal() for part in samepolicy.__version__.split(".")] == [True] * 3
