"""schema.md says what schema.py says."""

from pathlib import Path

from samepolicy.records import arrow, schema


def test_the_page_holds_the_table() -> None:
    page = Path(schema.__file__).with_name("schema.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert schema.table() in page
    assert len(rows) == len(schema.COLUMNS)
    assert f"layout version {arrow.SCHEMA}" in page
