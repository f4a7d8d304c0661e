"""``steelyard fidelity``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import err, say
from steelyard.cli.outputs import keep_inputs
from steelyard.files.writing import check_file, write_text
from steelyard.report.ablations import ablation_page
from steelyard.report.fidelity import fidelity_page
from steelyard.validate.ablations import ablations
from steelyard.validate.survey import find_runs, survey


def command(
    folders: Annotated[list[Path], typer.Argument(help="Folders with captures and bench results.")],
    out: Annotated[Path, typer.Option(help="Markdown file to write.")],
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Write what single mechanisms add to accuracy instead (docs/ablations.md).")
    ] = False,
) -> None:
    """Validate against all captures and tables, and write the fidelity page."""
    check_file(out)
    runs = find_runs(folders)
    keep_inputs(f"--out {out}", [out], runs.files)
    asked = f"steelyard fidelity {' '.join(map(str, folders))}{' --ablate' if ablate else ''} --out {out}"
    if ablate:
        write_text(out, ablation_page(ablations(runs.captures, err.print), asked))
    else:
        write_text(out, fidelity_page(survey(runs, err.print), asked))
    say(f"written to {out}")
