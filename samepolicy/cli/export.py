"""`samepolicy export`."""

from pathlib import Path
from typing import Annotated

import typer

from samepolicy.cli import options, output

To = Annotated[str, typer.Option("--to", help="parquet (one file), jsonl (one file) or verl_npy (a folder of pairs).")]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="A new file or folder to write to.")]


def command(run: options.RunFolder, out: Out, to: To = "parquet", as_json: options.AsJson = False) -> None:
    """Write a run for other programs: as one Parquet file, as JSON lines, or as verl's npy files."""
    from samepolicy.errors import InputError
    from samepolicy.records.formats import targets
    from samepolicy.records.store import read

    known = targets()
    if to not in known:
        raise InputError(f"A run cannot be exported to {to!r}; choose one of {', '.join(known)}.")
    found = read(run)
    known[to].write(found, out)
    files = sorted(out.rglob("*")) if out.is_dir() else [out]
    size = sum(file.stat().st_size for file in files)
    value = {"schema": 1, "to": to, "out": str(out), "files": len(files), "bytes": size, "responses": len(found)}
    output.show(f"Wrote {len(found)} responses to {out}: {len(files)} files, {size:,} bytes.", value, as_json=as_json)
