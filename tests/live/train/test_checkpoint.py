"""A run that was killed goes on exactly where its last checkpoint was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard.errors import UserError
from steelyard.live.train.checkpoint import latest
from steelyard.live.train.core import CoreLost
from steelyard.live.train.group import TrainingGroup
from support.paths import ROOT
from support.trainers import PATIENCE, distance, running, samples_of, settings_of, trained

BEGIN = """
import sys
from pathlib import Path
from support.trainers import running, samples_of, settings_of

with running(settings_of(Path(sys.argv[1]), "killed")) as found:
    for step in range(2):
        found.group.train(step, samples_of(step), last=True)
    found.group.checkpoint()
    found.group.train(2, samples_of(2)[:4], last=False)
    print("here", flush=True)
    sys.stdin.read()
"""


def test_killed_and_resumed(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "killed")
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        assert process.stdout.readline() == b"here\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
    with running(settings, resume=True) as found:
        assert (found.group.progress.step, found.group.progress.version) == (2, 2)
        for step in range(2, 4):
            found.group.train(step, samples_of(step), last=True)
        assert distance(found.weights(), trained(settings_of(tmp_path, "whole"), 4)) == 0


def test_only_the_last_are_kept_and_the_newest_complete_one_counts(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "kept", kept=2)
    with running(settings) as found:
        for step in range(4):
            found.group.checkpoint()
            found.group.train(step, samples_of(step), last=True)
        assert found.group.checkpoint() == found.group.checkpoint()  # once more changes nothing
    kept = sorted(each.name for each in (settings.folder / "checkpoints").iterdir())
    assert kept == ["step-00000003", "step-00000004"]
    (settings.folder / "checkpoints" / "step-00000004" / "progress.json").unlink()
    assert latest(settings).name == "step-00000003"


def test_what_was_published_after_the_checkpoint_is_replaced(tmp_path: Path) -> None:
    """A resumed run may come to other weights than the one that was killed: engines must get the new ones."""
    settings = settings_of(tmp_path, "again")
    with running(settings) as found:
        found.group.checkpoint()
        published = []
        for step in range(4):
            found.group.train(step, samples_of(step), last=True)
            published.append(found.weights())
    with running(settings, resume=True) as found:
        found.group.train(0, samples_of(7), last=True)
        assert distance(published[0], found.weights()) > 1e-4
    assert [each.name for each in (settings.folder / "published").iterdir()] == ["version-00000001"]
    with pytest.raises(UserError, match="has checkpoints of a run"):
        TrainingGroup.begin(settings)


def test_damage_is_a_message(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "damaged")
    with pytest.raises(UserError, match="no complete checkpoint"):
        TrainingGroup.resume(settings)
    with running(settings) as found:
        folder = found.group.checkpoint()
    (folder / "progress.json").write_text('{"step": "x", "version": 0, "updates": 0}')
    with pytest.raises(UserError, match=r"progress\.json: not a checkpoint's"):
        TrainingGroup.resume(settings)
    (folder / "progress.json").write_text('{"step": 0, "version": 0, "updates": 0}')
    whole = (folder / "optimizer.pt").read_bytes()
    for half in (b"", b"x" * 100, whole[:-100]):
        (folder / "optimizer.pt").write_bytes(half)
        with pytest.raises(UserError, match=r"optimizer\.pt: (damaged|cannot be read)"):
            TrainingGroup.resume(settings)
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        TrainingGroup.resume(settings)


def test_a_core_rank_that_is_lost_is_told(tmp_path: Path) -> None:
    """The core cannot go on without one of its ranks: it says so, and resumes with a new one."""
    settings = settings_of(tmp_path, "core")
    with running(settings, ranks=2) as found:
        found.group.train(0, samples_of(0), last=True)
        found.group.checkpoint()
        found.processes["1"].kill()
        found.processes["1"].wait()
        with pytest.raises(CoreLost, match="rank 1"):
            found.group.train(1, samples_of(1), last=True)
    with running(settings, resume=True) as found:
        assert found.group.train(1, samples_of(1), last=True).version == 2
