"""The table of captures and how their experts were routed."""

from __future__ import annotations

import pytest

from support.paths import DATA, ROOT
from tools.expert_routing import main


def test_the_page_has_what_the_tool_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Captures without experts have no row."""
    recorded = DATA / "h200-recorded"
    main([recorded / name for name in ("llama-3.1-8b", "mixtral-8x7b")])
    printed = capsys.readouterr().out.strip()
    rows = printed.splitlines()
    assert len(rows) == 6 and all(row.startswith("| mixtral-8x7b/") for row in rows[2:])
    assert printed in (ROOT / "docs/calibration.md").read_text()
