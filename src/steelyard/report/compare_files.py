"""Files of a comparison: its figures as JSON, and a page with an image for each scenario."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.writing import check_file, write_text
from steelyard.posttrain.compare_outcomes import Comparison
from steelyard.report.compare import comparison_page
from steelyard.report.compare_figure import comparison_svg
from steelyard.report.made import made_by
from steelyard.report.names import file_name

_IMAGES = Path("images/comparison")  # relative to the page


def comparison_json(found: Sequence[Comparison]) -> str:
    """All figures."""
    return json.dumps([each.as_dict() for each in found], indent=1, allow_nan=False)


def check_page(page: Path) -> None:
    """Raise UserError unless a page and what goes with it can be written."""
    check_file(page)
    if page.suffix == ".json":
        raise UserError(f"--page {page}: the figures are written beside the page as .json; give the page another name")
    check_file(page.with_suffix(".json"))
    check_file(page.parent / _IMAGES / "image.svg")


def write_comparison(found: Sequence[Comparison], page: Path, command: str) -> None:
    """Write the page, its images and its figures. ``command`` is named on the page."""
    for each in found:
        write_text(page.parent / _IMAGES / f"{file_name(each.scenario.name)}.svg", comparison_svg(each))
    write_text(page, comparison_page(found, command, _IMAGES.as_posix(), made_by()))
    write_text(page.with_suffix(".json"), comparison_json(found) + "\n")
