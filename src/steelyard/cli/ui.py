"""``steelyard ui``"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import say
from steelyard.errors import UserError


def command(
    folder: Annotated[Path, typer.Argument(help="Folder of scenarios and, in its `runs`, of results.")] = Path(),
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of this machine [default: a free one].")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Whether to open the page in a browser.")] = True,
) -> None:
    """Show a folder's scenarios and results on a local page: edit, run, ask what-if, compare, follow.

    Only this machine can reach it, and only with the token of the printed address. An interrupt (Ctrl-C) ends it, and
    the runs that it has started.
    """
    try:
        from steelyard.ui.serve import serve_page
    except ImportError as missing:
        raise UserError(f"ui needs {missing.name}; install steelyard[ui]") from None

    def ready(address: str, once: str) -> None:
        say(f"{folder} at {address}")
        sys.stdout.flush()
        if browser:
            _open(once)

    serve_page(folder, port, ready)


def _open(address: str) -> None:
    """Open the user's browser. Where there is none, the address is printed anyway."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
