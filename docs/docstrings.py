"""Docstrings of the house's style, and `def` lines, as Markdown."""

import ast
import inspect
import re
import textwrap
from typing import Any

SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$")
ENTRY = re.compile(r"^ {4}(?P<name>\*{0,2}\w+): (?P<text>.*)$")


def text_of(thing: Any) -> str:
    """A docstring as Markdown."""
    return markdown(inspect.getdoc(thing) or "")


def markdown(doc: str) -> str:
    """A docstring of the house's style as Markdown: sections become lists, examples become code."""
    lines: list[str] = []
    in_section = in_code = False
    for line in doc.splitlines():
        if in_code and not line.strip():
            lines.append("```")
            in_code = False
        if section := SECTION.match(line):
            lines += [f"**{section[1]}**", ""]
            in_section = True
        elif not in_code and line.lstrip().startswith(">>> "):
            lines += ["```pycon", line.strip()]
            in_code, in_section = True, False
        elif in_code:
            lines.append(line.removeprefix("    ") if in_section else line)
        elif in_section and (entry := ENTRY.match(line)):
            lines.append(f"- `{entry['name']}`: {entry['text']}")
        else:
            in_section = in_section and (not line or line.startswith(" "))
            lines.append(
                f"  {line.strip()}"
                if in_section and line.startswith("     ")
                else line.removeprefix("    ")
                if in_section
                else line
            )
    return "\n".join([*lines, "```"] if in_code else lines)


def signature(function: Any) -> str:
    """The `def` line with annotations as the source writes them; one line, or one per argument where that is long."""
    node = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    assert isinstance(node, ast.FunctionDef)
    arguments = [text for text in arguments_of(node.args) if text not in ("self", "cls")]
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{node.name}({', '.join(arguments)}){result}"
    if len(line) <= 100:
        return line
    rows = "".join(f"    {argument},\n" for argument in arguments)
    return f"{node.name}(\n{rows}){result}"


def arguments_of(arguments: ast.arguments) -> list[str]:
    """Each argument by itself, with annotation and default, and the star before the keyword-only ones."""
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + arguments.defaults
    texts = [argument_text(a, d) for a, d in zip(plain, defaults, strict=True)]
    if arguments.vararg or arguments.kwonlyargs:
        texts.append(f"*{argument_text(arguments.vararg)}" if arguments.vararg else "*")
    texts += [argument_text(a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return [*texts, f"**{argument_text(arguments.kwarg)}"] if arguments.kwarg else texts


def argument_text(argument: ast.arg, default: ast.expr | None = None) -> str:
    """`name: annotation = default`."""
    text = ast.unparse(argument)
    if default is None:
        return text
    return f"{text} = {ast.unparse(default)}" if argument.annotation else f"{text}={ast.unparse(default)}"
