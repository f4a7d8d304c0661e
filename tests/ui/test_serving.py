"""The server as a process: its address, what it leaves behind, and refusals before it starts."""

from __future__ import annotations

import stat
from pathlib import Path

import httpx
from typer.testing import CliRunner

from steelyard.cli import app
from support.page import CHAT, served


def test_it_listens_here_alone_with_a_token_and_forgets_it_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text(CHAT)
    cache = tmp_path / "cache"
    with served(tmp_path, cache=cache) as (address, _):
        assert address.startswith("http://127.0.0.1:") and len(address.partition("token=")[2]) >= 32
        (note,) = (cache / "ui").iterdir()
        assert stat.S_IMODE(note.stat().st_mode) == 0o600
        with httpx.Client() as client:
            home = address.partition("/?")[0]
            assert client.get(f"{home}/api/home").status_code == 403
            assert client.get(address).status_code == 200
            shown = client.get(f"{home}/api/home").json()
            assert [each["name"] for each in shown["scenarios"]] == ["chat.yaml"]
    assert not note.exists()
    with served(tmp_path, cache=cache) as (other, _):
        assert other != address, "an orderly end is the end of the address"


def test_a_folder_that_is_not_there_is_a_mistake() -> None:
    done = CliRunner().invoke(app, ["ui", "nowhere", "--no-browser"])
    assert done.exit_code != 0 and "nowhere: no such folder" in str(done.exception)
