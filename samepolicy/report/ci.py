"""A verdict for a pull request, as Markdown, and for a continuous integration, as JUnit XML."""

from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from samepolicy.report import data
from samepolicy.report.page.causes import causes
from samepolicy.report.tables import number

MARKS = {"markdown": "### samepolicy: ", "junit": '<testsuites name="samepolicy" '}
"""What stands among the first bytes of each kind of file, so that one may replace an older one and nothing else."""

SIGN = {"passed": "✓", "failed": "✗", "not checked": "○"}
SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]()#+-!|~"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"})
SHOWN = (("logp_diff", "mean"), ("logp_diff", "p99"), ("prob_diff", "mean"), ("ratio", "mean"), ("k3", "mean"))


def markdown(value: Mapping[str, Any]) -> str:
    """A summary for a pull request.

    Args:
        value: the JSON value of a diagnosis.

    Returns:
        GitHub's Markdown: the verdict, its causes, the ladder in a line, and the main metrics; text of the run can be
        neither markup nor a link in it.
    """
    lines = [f"### samepolicy: {value['verdict']}", "", _plain(value["sentence"]), ""]
    if "sample" in value:
        lines += [f"Of {value['sample']['responses']} responses, drawn from {value['sample']['of']}.", ""]
    lines += [line for warning in value["warnings"] for line in (f"**Beware**: {_plain(warning)}.", "")]
    lines += [line for cause in causes(value) for line in _cause(cause)]
    lines += [" ".join(f"{SIGN[rung['status']]}&nbsp;{rung['name']}" for rung in value["ladder"]), ""]
    lines += ["| metric | value | usual |", "|---|---:|---|", *_rows(value), ""]
    failed = [rung for rung in value["ladder"] if rung["status"] == "failed"]
    lines += [f"- **{rung['name']}** failed: {_plain(rung['why'])}" for rung in failed]
    return "\n".join([*lines, *([""] if failed else []), f"**Next**: {_plain(value['next'])}", ""])


def _cause(cause: Mapping[str, Any]) -> Iterator[str]:
    """One named cause."""
    share = f", explains {cause['share']:.0%} of the gap" if isinstance(cause["share"], int | float) else ""
    inside = ", ".join(f"{k} {v}" for k, v in cause["parameters"].items())
    told = f" ({_plain(inside)})" if inside else ""
    side = f", {cause['side']}" if cause["side"] else ""
    yield f"**Cause: {_plain(cause['cause'])}**{told}{side}{share}"
    yield ""
    for name in ("evidence", "fix"):
        if cause[name]:
            yield f"- {name}: {_plain(cause[name])}"
    yield ""


def _rows(value: Mapping[str, Any]) -> Iterator[str]:
    """The main metrics beside their usual ranges."""
    for metric, readout in (*SHOWN, ("ess_token", "ess")):
        if metric not in value["metrics"]:
            continue
        _, best = data.usual(value, metric, readout)
        read = value["metrics"][metric].get(readout)
        shown = read if isinstance(read, str) else number(read, 3)
        yield f"| {metric} {readout} | {shown} | {_range(best)} |"


def _range(reading: Mapping[str, Any] | None) -> str:
    """A usual range in words."""
    if reading is None:
        return ""
    low, high = reading["low"], reading["high"]
    kind = "" if reading["models"] == "any" else f"; {_plain(reading['models'])}"
    ends = f"up to {high:g}" if low in (None, 0.0) else f"{low:g} or more" if high is None else f"{low:g} to {high:g}"
    return f"{ends} ({'usual' if reading['state'] == 'normal' else 'beyond'}, {_plain(reading['source'])}{kind})"


def _plain(text: Any) -> str:
    """Text of any origin as Markdown that shows it and does nothing."""
    return " ".join(str(text).split()).translate(SPECIAL)


def junit(value: Mapping[str, Any]) -> str:
    """The verdict and the rungs of the ladder as tests.

    Args:
        value: the JSON value of a diagnosis.

    Returns:
        JUnit XML: the verdict fails where it is `different` and is an error where it is `inconclusive`. A rung that
        failed fails its test only beside such a verdict, since a declaration alone is a lead and no proof; a rung that
        was not checked is skipped, with what it would take.
    """
    verdict = value["verdict"]
    kinds = {"different": "failure", "inconclusive": "error"}
    cases = [_case("verdict", kinds.get(verdict), value["sentence"], value["next"])]
    for rung in value["ladder"]:
        failed = "failure" if verdict == "different" else None
        kind = {"passed": None, "failed": failed, "not checked": "skipped"}[rung["status"]]
        cases.append(_case(f"ladder.{rung['name']}", kind, rung["why"], f"{rung['status']}: {rung['why']}"))
    for cause in causes(value):
        cases.append(_case(f"cause.{cause['cause']}", "failure", str(cause["evidence"]), str(cause["fix"])))
    counts = {k: sum(f"<{k} " in c for c in cases) for k in ("failure", "error", "skipped")}
    head = f'name="samepolicy" tests="{len(cases)}" failures="{counts["failure"]}" errors="{counts["error"]}"'
    body = "\n".join(cases)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuites {head}>\n<testsuite {head} skipped="{counts["skipped"]}">\n{body}\n</testsuite>\n</testsuites>\n'
    )


def _case(name: str, kind: str | None, message: str, text: str) -> str:
    """One test."""
    body = f"<{kind} message={quoteattr(_legal(message))}>{escape(_legal(text))}</{kind}>" if kind else ""
    said = "" if kind else f"<system-out>{escape(_legal(text))}</system-out>"
    return f'<testcase classname="samepolicy" name={quoteattr(_legal(name))}>{body}{said}</testcase>'


def _legal(text: str) -> str:
    """Text without what XML has no way to write."""
    return "".join(
        c if c in "\t\n\r" or (c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff") else "�"
        for c in text
    )
