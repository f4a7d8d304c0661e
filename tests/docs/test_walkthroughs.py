"""The tutorial and the how-to pages work as written: their blocks are carried out one after the other.

A block with a title is written to that file. Commands of ``steelyard`` run as they are, other commands only if they are
in `OTHERS`. Python runs. A block of text after commands is what they print: each of its lines must be in their output.
"""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from steelyard.balance.route import serving
from steelyard.cli import app
from steelyard.engine import policies
from support.snippets import ROOT, WALKTHROUGHS, Block, blocks_of, lines_of

OTHERS = {
    "make demo": "sets up what runs this test",
    "source .venv/bin/activate": "the same",
    "STEELYARD_RECORD=capture vllm serve": "needs a GPU",
    "steelyard profile": "needs a GPU",
}
SHIPPED = ROOT / "src/steelyard/cost/bundles/h200.jsonl.gz"


def _recorded(folder: Path) -> None:
    """What the recorder would have written: a capture that the repository has."""
    recorded = ROOT / "tests/data/h200-recorded/llama-3.1-8b-short"
    shutil.copytree(recorded, folder / "capture", ignore=shutil.ignore_patterns("poisson.*"))


def _profiled(folder: Path) -> None:
    """What profiling would have written: of the profile that ships the matrices of some shapes, and all else."""
    lines = gzip.decompress(SHIPPED.read_bytes()).splitlines(keepends=True)
    kept = (line for line in lines if b'"op":"gemm"' not in line or b'"k":4096}' in line)
    (folder / "my-gpu.jsonl").write_bytes(b"".join(kept))


STAND_INS: dict[str, Callable[[Path], None]] = {"vllm serve": _recorded, "steelyard profile": _profiled}


class Walk:
    """A reader who does what a page says, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "walkthrough"}
        self.output = ""

    def take(self, block: Block) -> None:
        """Do what a block says."""
        if block.title:
            (self.folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / block.title).write_text(block.text)
        elif block.language == "sh":
            self.output = "".join(map(self.run, filter(None, lines_of(block.text.replace("\\\n", " ")))))
        elif block.language == "python":
            exec(compile(block.text, str(block), "exec"), self.names)
        elif block.language == "text":
            self._expect(block)

    def run(self, line: str) -> str:
        """Run one command, and return what it prints."""
        other = next((start for start in OTHERS if line.startswith(start)), None)
        if other is not None:
            for part, provide in STAND_INS.items():
                if part in line:
                    provide(self.folder)
            return ""
        words = shlex.split(line)
        assert words[0] == "steelyard", f"{line}: no test carries this out"
        ran = CliRunner().invoke(app, words[1:], catch_exceptions=False)
        assert ran.exit_code == 0, f"{line}: {ran.output}"
        return str(ran.output)

    def _expect(self, block: Block) -> None:
        printed = _plain(self.output)
        for line in filter(None, map(_plain, block.text.splitlines())):
            assert line == "..." or line in printed, f"{block}: not printed: {line}\n{self.output}"


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


@pytest.fixture(autouse=True)
def _registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page puts in place of a scheduler or a router is gone when it ends."""
    monkeypatch.setattr(policies, "POLICIES", dict(policies.POLICIES))
    monkeypatch.setattr(serving, "SERVING_ROUTERS", dict(serving.SERVING_ROUTERS))


@pytest.mark.parametrize("page", WALKTHROUGHS, ids=lambda page: page.stem)
def test_it_works_as_written(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    walk = Walk(tmp_path)
    taken = blocks_of(page)
    assert any(block.language == "sh" or block.language == "python" for block in taken)
    for block in taken:
        walk.take(block)


def test_pages_have_only_blocks_that_are_carried_out() -> None:
    languages = {"sh", "python", "text", "yaml", "json", "csv"}
    for page in WALKTHROUGHS:
        for block in blocks_of(page):
            assert block.language in languages, block
            assert block.title or block.language in ("sh", "python", "text"), f"{block}: which file is it?"


def test_nothing_is_left_out_without_need() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in WALKTHROUGHS)
    assert all(start in text for start in OTHERS)
