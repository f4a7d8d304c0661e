"""The page of the studies: what commands write stands between marks, the words around it stay."""

from __future__ import annotations

from pathlib import Path

from studies.figures import DOCS

PAGE = DOCS / "studies.md"


def write_section(name: str, text: str) -> None:
    """Put a study's results where the page marks them."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def images() -> Path:
    """The folder of the studies' figures."""
    folder = DOCS / "images" / "studies"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
