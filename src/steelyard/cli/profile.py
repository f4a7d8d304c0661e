"""``steelyard profile``"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import LateProgress, say
from steelyard.errors import UserError
from steelyard.files.writing import check_file


def command(
    out: Annotated[Path, typer.Argument(help="File of measured points; points are added if it exists.")],
    minutes: Annotated[
        float, typer.Option(min=0.1, help="Stop after this many minutes; run again to continue.")
    ] = 10.0,
) -> None:
    """Measure this machine's GPU, operator by operator (needs torch; vLLM's kernels where installed)."""
    check_file(out)
    try:
        _check_gpu()
        from steelyard.profile.grid import points
        from steelyard.profile.run import about, measure
    except ImportError as error:
        raise UserError(
            f"profiling needs a machine with a GPU and torch ({error}); pip install 'steelyard[profile]'"
        ) from None
    todo = list(points())
    typer.echo(json.dumps(about()))
    with LateProgress("measuring") as progress:
        added = measure(todo, out, minutes * 60, lambda done: progress(done, len(todo)))
    say(f"{added} points added to {out}, of {len(todo)} in the grid")


def _check_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise UserError(
            f"profiling needs a CUDA GPU, and torch {torch.__version__} finds none; run it on a machine with an NVIDIA "
            "GPU and a torch built for CUDA"
        )
