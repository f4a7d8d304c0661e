"""Starts the server of the page, and ends it."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from steelyard.emulate.servers import LocalServer, listen, serve_at, stop_on_signals
from steelyard.errors import UserError, shown
from steelyard.files.finding import is_file, is_folder
from steelyard.files.paths import absolute
from steelyard.files.reading import read_text
from steelyard.files.writing import write_secret
from steelyard.sim.cache import cache_folder
from steelyard.sim.content import digest
from steelyard.ui.app import make_page_app
from steelyard.ui.folder import UiFolder
from steelyard.ui.guard import Guard
from steelyard.ui.state import PageState
from steelyard.ui.whatif import curves_at_work

HOST = "127.0.0.1"
_LONGEST_TOKEN = 100


def serve_page(folder: Path, port: int | None, ready: Callable[[str, str], None], workers: int | None = None) -> None:
    """Serve the page of a folder until interrupted. ``ready`` is told its address, and one that can be used once."""
    if not is_folder(folder):
        raise UserError(f"{shown(folder)}: no such folder; give one that has, or will have, scenarios")
    root = absolute(folder)
    left = _left_behind(root)
    token, listener = secrets.token_urlsafe(24) if left is None else left[0], _listener(port, left)
    own = listener.getsockname()[1]
    note = _note_of(root)
    if note is not None:
        write_secret(note, f"{own} {token}\n")
    with curves_at_work(workers) as curves:
        state, ticket = PageState(UiFolder(root), curves), secrets.token_urlsafe(24)
        guarded = Guard(make_page_app(state), token, own, ticket)
        addresses = (f"http://{HOST}:{own}/?token={each}" for each in (token, ticket))
        asyncio.run(_serve(state, guarded, listener, lambda: ready(*addresses)))
    if note is not None:
        note.unlink(missing_ok=True)


def _listener(port: int | None, left: tuple[str, int] | None) -> socket.socket:
    """A socket at the port that is asked for; otherwise at that of a server that was killed, or a free one."""
    if port is None and left is not None:
        try:
            return listen(HOST, left[1])
        except UserError:
            return listen(HOST, 0)
    return listen(HOST, port or 0)


def _note_of(root: Path) -> Path | None:
    """Where the address of a folder's server is kept while it runs, so that after a crash open pages find it again."""
    cache = cache_folder()
    return None if cache is None else cache / "ui" / digest(root)


def _left_behind(root: Path) -> tuple[str, int] | None:
    """Token and port of a server of this folder that was killed."""
    note = _note_of(root)
    if note is None or not is_file(note):
        return None
    try:
        port, _, token = read_text(note, _LONGEST_TOKEN).strip().partition(" ")
    except UserError:
        return None
    return (token, int(port)) if port.isascii() and port.isdigit() and len(token) >= 24 and len(port) < 6 else None


async def _serve(state: PageState, app: Guard, listener: socket.socket, ready: Callable[[], None]) -> None:
    config = uvicorn.Config(
        app,
        interface="asgi3",
        log_level="critical",
        access_log=False,
        loop="asyncio",
        ws="none",
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    server = LocalServer(config)
    stop_on_signals([server])
    ready()
    try:
        await serve_at(server, listener)
    finally:
        state.live.stop()
        await state.runs.end()
