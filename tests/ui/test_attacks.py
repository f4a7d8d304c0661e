"""Attacks on the whole application, without a browser: names that lead out, links, texts that grow, sizes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from steelyard.ui.app import make_page_app
from steelyard.ui.folder import UiFolder
from steelyard.ui.guard import Guard
from steelyard.ui.state import PageState
from steelyard.ui.whatif import Curves
from support.page import CHAT

PORT, TOKEN = 8123, "a-token-of-some-length"
OWN = f"http://127.0.0.1:{PORT}"
SECRET = "outside-the-folder"
Ask = Callable[..., httpx.Response]
OUT = ("../elsewhere", "..", "runs/../../elsewhere", "/etc", "kept/../../..", "linked", "kept\0", ".")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a result, and beside it what nobody may see or delete."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "summary.json").write_text(json.dumps({"name": SECRET}))
    (tmp_path / "secret.yaml").write_text(f"name: {SECRET}")
    home = tmp_path / "home"
    (home / "runs" / "kept").mkdir(parents=True)
    (home / "runs" / "kept" / "summary.json").write_text("{}")
    (home / "runs" / "linked").symlink_to(tmp_path / "elsewhere")
    (home / "runs" / "inside").mkdir()
    (home / "runs" / "inside" / "summary.json").symlink_to(tmp_path / "elsewhere" / "summary.json")
    (home / "linked.yaml").symlink_to(tmp_path / "secret.yaml")
    (home / "chat.yaml").write_text(CHAT)
    return home


@pytest.fixture
def ask(home: Path) -> Ask:
    """A request with the token, from a page of the server. Nothing that is refused needs a worker."""
    crew: Any = None
    app = Guard(make_page_app(PageState(UiFolder(home), Curves([0] * 256, crew))), TOKEN, PORT)

    def asked(method: str, path: str, body: Any = None) -> httpx.Response:
        async def main() -> httpx.Response:
            headers = {"cookie": f"steelyard-{PORT}={TOKEN}", "origin": OWN}
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=OWN) as client:
                return await client.request(method, path, headers=headers, json=body)

        return asyncio.run(main())

    return asked


@pytest.mark.parametrize("name", OUT)
def test_nothing_outside_is_deleted_and_one_bad_name_deletes_none(ask: Ask, home: Path, name: str) -> None:
    assert ask("POST", "/api/delete", {"names": ["kept", name]}).status_code == 400
    assert (home / "runs" / "kept").exists() and (home.parent / "elsewhere" / "summary.json").exists()


@pytest.mark.parametrize("name", ["../secret.yaml", "linked.yaml", "/etc/passwd", "..\\secret.yaml", "secret.yaml\0"])
def test_no_scenario_outside_is_run_or_asked_what_if(ask: Ask, home: Path, name: str) -> None:
    for path, body in (
        ("/api/started", {"names": [name]}),
        ("/api/whatif", {"tab": "1", "name": name}),
        ("/api/check", {"name": name, "text": CHAT}),
    ):
        answer = ask("POST", path, body)
        assert answer.status_code == 400 and SECRET not in answer.text, path
    assert {each.name for each in home.iterdir()} == {"runs", "chat.yaml", "linked.yaml"}


def test_links_among_results_are_not_followed(ask: Ask) -> None:
    for path in ("/api/runs", "/api/runs/inside", "/api/runs/inside/files/summary.json", "/api/runs/linked"):
        answer = ask("GET", path)
        assert SECRET not in answer.text, path
    (row,) = (each for each in ask("GET", "/api/runs").json() if each["name"] == "inside")
    assert row["kind"] == "unknown" and "link" in row["problem"]


def test_a_text_that_grows_when_it_is_read_is_refused_soon(ask: Ask) -> None:
    """Each line names the one before it ten times: read out, a billion entries."""
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10))]
    answer = ask("POST", "/api/check", {"name": "bomb.yaml", "text": "\n".join(lines)})
    assert answer.status_code == 200 and answer.json()["problems"] and len(answer.text) < 10_000


def test_a_scenario_of_100_megabytes_is_neither_taken_nor_opened(ask: Ask, home: Path) -> None:
    large = {"name": "large.yaml", "text": "#" * (100 << 20)}
    assert ask("PUT", "/api/scenarios/large.yaml", large).status_code == 413
    assert not (home / "large.yaml").exists()
    with (home / "large.yaml").open("wb") as file:
        file.truncate(100 << 20)
    for method, path, body in (
        ("GET", "/api/scenarios/large.yaml", None),
        ("POST", "/api/started", {"names": ["large.yaml"]}),
        ("POST", "/api/whatif", {"tab": "1", "name": "large.yaml"}),
    ):
        answer = ask(method, path, body)
        assert answer.status_code == 400 and "1,048,576 bytes" in answer.text, path
    assert "large.yaml" in ask("GET", "/api/home").text, "the list does not fail"


def test_a_result_s_file_is_saved_and_never_shown(ask: Ask, home: Path) -> None:
    """A report is HTML of somebody's making: under our address it could ask for all that the page can."""
    (home / "runs" / "kept" / "report.html").write_text("<script>alert(1)</script>")
    answer = ask("GET", "/api/runs/kept/files/report.html")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert "script-src" not in answer.headers["content-security-policy"]
