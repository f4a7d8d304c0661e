"""Scenarios to begin with, for a folder that has none."""

from __future__ import annotations

from pathlib import Path

from steelyard.errors import UserError, did_you_mean
from steelyard.files.reading import read_text

STARTERS = {
    "chat": "A chat service on two H200s",
    "prefill-decode": "Prefill and decode on engines of their own",
    "search": "Which fleet to buy for a chat service",
    "posttrain": "RL post-training of an agent that searches",
}


def starter_text(name: str) -> str:
    """The text of one."""
    if name not in STARTERS:
        raise UserError(f"{name!r}: no such starter; {did_you_mean(name, STARTERS)}")
    return read_text(Path(__file__).parent / "starters" / f"{name}.yaml")
