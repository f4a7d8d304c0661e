"""The part of ``steelyard compare`` that is for serving."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from steelyard.cli.console import LateProgress, say
from steelyard.cli.console import out as console
from steelyard.cli.outputs import keep_inputs, scenario_inputs
from steelyard.files.writing import check_file
from steelyard.report.serving_compare import (
    print_serving_comparison,
    serving_comparison_json,
    write_serving_page,
)
from steelyard.search.compare.comparison import compare_serving
from steelyard.search.compare.given import Given, read_given


def compare_columns(
    paths: Sequence[Path],
    overrides: Sequence[str],
    seeds: int,
    workers: int,
    costs: bool,
    page: Path | None,
    json_: bool,
) -> None:
    """Read, compare, print and write."""
    given = read_given(paths, overrides)
    if page is not None:
        check_file(page)
        keep_inputs(f"--page {page}", [page], [path for each in given for path in _inputs(each)])
    with LateProgress("simulating") as progress:
        found = compare_serving(given, seeds, workers, costs, progress)
    if page is not None:
        write_serving_page(found, page)
    if json_:
        sys.stdout.buffer.write(serving_comparison_json(found).encode())
        return
    print_serving_comparison(found, console)
    if page is not None:
        say(f"\npage: {page}")


def _inputs(given: Given) -> list[Path]:
    return [given.path] if given.scenario is None else [given.path, *scenario_inputs(given.path, given.scenario)]
