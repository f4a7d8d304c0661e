"""Write the page about other systems.

python -m tools.rivals_page docs/rivals.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from steelyard.files.writing import write_text
from steelyard.report.rivals import rivals_page


def main() -> None:
    """Write the page to the given path."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m tools.rivals_page PAGE")
    write_text(Path(sys.argv[1]), rivals_page())


if __name__ == "__main__":
    main()
