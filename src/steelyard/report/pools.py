"""Pools and links in words, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steelyard.report.words import byte_size, count, percent, pick

Summary = Mapping[str, Any]

POOLS_HEAD = ("Pool", "GPUs", "engines", "busy", "MFU", "MBU", "KV use", "peak")
LINKS_HEAD = ("Links", "carried", "mean use", "busiest", "in use")


def pool_rows(summary: Summary) -> list[list[str]]:
    """One row for each pool of a fleet that has several."""
    pools = summary.get("pools", ())
    if len(pools) < 2:
        return []
    return [
        [
            str(pool["name"]) if pool["name"] == pool["role"] else f"{pool['name']} ({pool['role']})",
            f"{count(pool['gpus'])} {pool['gpu']}",
            count(pool["replicas"]),
            *(percent(pick(pool, name)) for name in ("busy", "mfu", "mbu")),
            *(percent(pick(pool, "kv", name)) for name in ("mean_use", "peak_use")),
        ]
        for pool in pools
    ]


def link_rows(summary: Summary) -> list[list[str]]:
    """One row for each kind of link that requests passed over."""
    return [
        [
            name.replace("_", " "),
            byte_size(pick(use, "bytes")),
            *(percent(pick(use, each)) for each in ("mean_use", "peak_use", "busy")),
        ]
        for name, use in summary.get("links", {}).items()
    ]
