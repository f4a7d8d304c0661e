"""``steelyard calibrate``"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import LateProgress, say
from steelyard.cli.console import out as console
from steelyard.cli.outputs import keep_inputs
from steelyard.files.writing import check_file, write_text
from steelyard.report.calibration import print_calibration
from steelyard.validate.capture import capture_files
from steelyard.validate.crossed import cross_calibrate, read_sources


def command(
    captures: Annotated[list[Path], typer.Argument(help="Capture folders of your own engine (docs/calibration.md).")],
    out: Annotated[Path, typer.Option(help="File to write, for cost.calibration of scenarios.")],
    gpu: Annotated[str | None, typer.Option(help="GPU of the captures; as they say if not given.")] = None,
) -> None:
    """Fit the host's times to captures, and test them on held-out captures."""
    check_file(out)
    keep_inputs(f"--out {out}", [out], (file for folder in captures for file in capture_files(folder)))
    with LateProgress("calibrating") as progress:
        crossed = cross_calibrate(read_sources(captures, gpu), progress)
    write_text(out, json.dumps(crossed.as_dict(), indent=2, allow_nan=False) + "\n")
    print_calibration(crossed, console)
    say(f"\nwritten to {out}")
