"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path | None, typer.Option(help="Result folder; runs/NAME-N if not given.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing result folder.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override a key, such as engine.max_num_seqs=64.")]
Summary = Annotated[bool, typer.Option("--json", help="Print summary.json to standard output.")]
Figures = Annotated[bool, typer.Option("--json", help="Print all figures as JSON to standard output.")]
Check = Annotated[
    bool, typer.Option("--check", help="Check what must hold in any result; the exit code is 1 if something does not.")
]
Posttrain = Annotated[Path, typer.Argument(help="Post-training scenario, YAML or JSON (docs/posttrain.md).")]
