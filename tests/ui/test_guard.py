"""Who may ask the page's server: only a browser with its token, under its own address, from its own pages."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from steelyard.ui.guard import MOST_BODY, Guard, TooLarge

TOKEN, PORT = "a-token-of-some-length", 8123
OWN = f"http://127.0.0.1:{PORT}"
COOKIE = {"cookie": f"steelyard-{PORT}={TOKEN}"}


def ask(method: str, path: str, headers: dict[str, str], content: Any = None) -> httpx.Response:
    """An answer of a guarded application that would tell everybody everything."""
    inner = FastAPI()

    @inner.get("/secret")
    async def secret() -> str:
        return "secret"

    @inner.post("/change")
    async def change(request: Request) -> int:
        try:
            return len(await request.body())
        except TooLarge:
            return -1

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(Guard(inner, TOKEN, PORT))
        async with httpx.AsyncClient(transport=transport, base_url=OWN) as client:
            return await client.request(method, path, headers=headers, content=content)

    return asyncio.run(main())


def test_the_token_becomes_a_cookie_that_no_script_reads_and_no_other_site_sends() -> None:
    answer = ask("GET", f"/?token={TOKEN}", {})
    assert answer.status_code == 200 and "secret" not in answer.text
    cookie = answer.headers["set-cookie"]
    assert TOKEN in cookie and "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert ask("GET", "/secret", COOKIE).json() == "secret"


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="no token"),
        pytest.param({"cookie": f"steelyard-{PORT}=wrong"}, id="a wrong token"),
        pytest.param({"cookie": f"steelyard-{PORT}={TOKEN[:-1]}"}, id="a part of it"),
        pytest.param({"cookie": f"steelyard-{PORT + 1}={TOKEN}"}, id="that of another server"),
        pytest.param({"authorization": f"Bearer {TOKEN}"}, id="another header"),
        pytest.param({**COOKIE, "host": "evil.example"}, id="a name that points here"),
        pytest.param({**COOKIE, "host": f"127.0.0.1.evil.example:{PORT}"}, id="a name that looks like ours"),
        pytest.param({**COOKIE, "host": f"127.0.0.1:{PORT + 1}"}, id="another port"),
        pytest.param({**COOKIE, "origin": "http://evil.example"}, id="another site's page"),
        pytest.param({**COOKIE, "origin": "null"}, id="a page without a site"),
        pytest.param({**COOKIE, "origin": f"https://127.0.0.1:{PORT}"}, id="another scheme"),
    ],
)
def test_all_others_are_refused(headers: dict[str, str]) -> None:
    answer = ask("GET", "/secret", headers)
    assert answer.status_code in (403, 421) and "secret" not in answer.text


def test_a_ticket_opens_the_page_once() -> None:
    async def main() -> list[int]:
        guard = Guard(FastAPI(), TOKEN, PORT, "a-ticket")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url=OWN) as client:
            found = []
            for _ in range(2):
                found.append((await client.get("/?token=a-ticket")).status_code)
                client.cookies.clear()
            return found

    assert asyncio.run(main()) == [200, 403]


def test_a_token_in_the_address_of_anything_but_the_page_does_not_count() -> None:
    assert ask("GET", f"/secret?token={TOKEN}", {}).status_code == 403


def test_a_change_needs_our_origin() -> None:
    assert ask("POST", "/change", COOKIE, b"x").status_code == 403
    assert ask("POST", "/change", {**COOKIE, "origin": "http://evil.example"}, b"x").status_code == 403
    assert ask("POST", "/change", {**COOKIE, "origin": OWN}, b"x").json() == 1


def test_large_bodies_are_not_read() -> None:
    own = {**COOKIE, "origin": OWN}
    assert ask("POST", "/change", {**own, "content-length": str(100 << 20)}, b"").status_code == 413
    assert ask("POST", "/change", {**own, "content-length": "many"}, b"").status_code == 413

    async def endless() -> Any:
        for _ in range(MOST_BODY // 65536 + 2):
            yield b"x" * 65536

    assert ask("POST", "/change", own, endless()).json() == -1, "without a length it is cut off at the bound"


def test_every_answer_says_what_browsers_must_not_do() -> None:
    for answer in (ask("GET", "/secret", COOKIE), ask("GET", "/secret", {}), ask("GET", "/none", COOKIE)):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
