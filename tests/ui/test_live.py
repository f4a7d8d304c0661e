"""What the page is told of a live run."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event

import pytest

from steelyard.live.explain import explanations, log_of
from steelyard.live.store import log_rows
from steelyard.ui import live
from steelyard.ui.live import FollowedRun
from support.page import make_live


def test_a_run_that_is_over_is_complete_only_once_its_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page asks no more when it is: it stopped without sentences where reading took longer than the first look."""
    make_live(tmp_path / "run")
    begin, read = Event(), log_rows

    def late(*words: object) -> object:
        begin.wait()
        return read(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(live, "log_rows", late)
    followed = FollowedRun(tmp_path / "run")
    first = followed.page(0)
    assert first["over"] and first["history"] and not first["complete"] and not first["sentences"]
    begin.set()
    until = time.monotonic() + 120
    while not (found := followed.page(0))["complete"] and time.monotonic() < until:
        time.sleep(0.02)
    assert found["complete"] and found["count"] == len(list(explanations(log_of(followed.run.store))))
    followed.stop()
