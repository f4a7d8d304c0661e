"""Files of a comparison: its figures as JSON, and a page with an image for each scenario."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from steelyard.posttrain.compare_outcomes import Comparison
from steelyard.report.compare import comparison_page
from steelyard.report.compare_figure import comparison_svg
from steelyard.report.folder import write_whole

_IMAGES = Path("images/comparison")  # relative to the page


def comparison_json(found: Sequence[Comparison]) -> str:
    """All figures."""
    return json.dumps([each.as_dict() for each in found], indent=1, allow_nan=False)


def write_comparison(found: Sequence[Comparison], page: Path, command: str) -> None:
    """Write the page, its images and its figures. ``command`` is named on the page."""
    for each in found:
        write_whole(page.parent / _IMAGES / f"{each.scenario.name}.svg", comparison_svg(each))
    write_whole(page, comparison_page(found, command, _IMAGES.as_posix()))
    write_whole(page.with_suffix(".json"), comparison_json(found) + "\n")
