"""Pools and links in words, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from steelyard.report.markup import text_table
from steelyard.report.words import Share, byte_size, count, percent, pick

Summary = Mapping[str, Any]

POOLS_HEAD = ("Pool", "GPUs", "engines", "busy", "MFU", "MBU", "KV use", "peak")
LINKS_HEAD = ("Links", "carried", "mean use", "busiest", "in use")

# What GPUs do in their busy time other than work: key, name and of which time it is a share.
_WAITS = (
    ("stalled", "stalled", "of the time of decode steps, waiting for the other side"),
    ("pipeline_bubble", "bubble", "of the time of stages, with nothing to do while another stage had"),
)


def pool_rows(summary: Summary) -> list[list[str | Share]]:
    """One row for each pool of a fleet that has several."""
    pools = summary.get("pools", ())
    return [_row(pool) for pool in pools] if len(pools) > 1 else []


def link_rows(summary: Summary) -> list[list[str | Share]]:
    """One row for each kind of link that requests passed over."""
    return [
        [
            name.replace("_", " "),
            byte_size(pick(use, "bytes")),
            *(Share(pick(use, each)) for each in ("mean_use", "peak_use", "busy")),
        ]
        for name, use in summary.get("links", {}).items()
    ]


def wait_lines(summary: Summary) -> dict[str, str]:
    """`Stalled`: `attention 55.0 %, ffn 18.5 % of the time of ...`, for whatever kinds of waiting a fleet knows."""
    found = {}
    for key, name, of_what in _WAITS:
        pools = [pool for pool in summary.get("pools", ()) if key in pool]
        if pools:
            shares = ", ".join(f"{pool['name']} {percent(pick(pool, key))}" for pool in pools)
            found[name.capitalize()] = f"{shares} {of_what}"
    return found


def pool_section(summary: Summary) -> str:
    """The pools of a fleet that has several or whose GPUs wait for each other, and the links between them."""
    pools: Sequence[Summary] = summary.get("pools", ())
    waits = [wait for wait in _WAITS if any(wait[0] in pool for pool in pools)]
    if len(pools) < 2 and not waits:
        return ""
    head, rows = list(POOLS_HEAD), [_row(pool) for pool in pools]
    at = head.index("busy") + 1
    head[at:at] = [name for _, name, _ in waits]
    for row, pool in zip(rows, pools, strict=True):
        row[at:at] = [Share(pick(pool, key)) for key, _, _ in waits]
    if "models" in summary:
        head[1:1] = ["model"]
        for row, pool in zip(rows, pools, strict=True):
            row[1:1] = [str(pool["model"])]
    said = "".join(f"<p>{escape(f'{name.capitalize()}: the share {of_what}.')}</p>" for _, name, of_what in waits)
    return text_table(head, rows) + said + text_table(LINKS_HEAD, link_rows(summary))


def _row(pool: Summary) -> list[str | Share]:
    return [
        str(pool["name"]) if pool["name"] == pool["role"] else f"{pool['name']} ({pool['role']})",
        f"{count(pool['gpus'])} {pool['gpu']}",
        count(pool["replicas"]),
        Share(pick(pool, "busy")),
        *(percent(pick(pool, name)) for name in ("mfu", "mbu")),
        *(percent(pick(pool, "kv", name)) for name in ("mean_use", "peak_use")),
    ]
