"""Writes the generated pages of the book: python -m tools.book [--check]

With ``--check`` nothing is written, and the exit code is 1 if a page differs from what would be.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.book.pages import generated_pages

ROOT = Path(__file__).parents[2]


def stale() -> list[str]:
    """The pages that differ from what is generated now."""
    return [
        name
        for name, text in generated_pages().items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text(encoding="utf-8") != text
    ]


def main() -> int:
    """Write or check the pages."""
    old = stale()
    if "--check" in sys.argv[1:]:
        print("\n".join(f"{name} is stale: run python -m tools.book" for name in old) or "all pages are up to date")
        return int(bool(old))
    pages = generated_pages()
    for name in old:
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages[name], encoding="utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
