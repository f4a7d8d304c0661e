"""Mutations of files: of JSON values, of lines, of bytes, and of what a path may be instead of a file."""

from __future__ import annotations

import gzip
import json
from copy import deepcopy
from random import Random
from typing import Any

from tools.fuzz.case import Content
from tools.fuzz.values import WHOLE, hostile

_PATIENT = 1 << 24  # bytes of one member of a gzip bomb
_BOMB = 96  # members
_MEMBERS = 300_000  # empty ones


def json_value(data: Any, r: Random) -> Any:
    """One value somewhere in nested data replaced, removed, doubled or renamed."""
    data = deepcopy(data)
    parents = list(_containers(data))
    if not parents:
        return hostile(r)
    parent = r.choice(parents)
    keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
    if not keys:
        return hostile(r)
    key = r.choice(keys)
    action = r.random()
    if action < 0.7:
        parent[key] = _near(parent[key], r)
    elif action < 0.85:
        del parent[key]
    elif isinstance(parent, dict):
        parent[r.choice(("", "x", "id", "kind", f"{key} "))] = parent.pop(key) if action < 0.93 else parent[key]
    else:
        parent.insert(key, deepcopy(parent[key]))
    return data


def _near(value: Any, r: Random) -> Any:
    """Another value of the same kind, or any other."""
    if isinstance(value, int | float) and not isinstance(value, bool) and r.random() < 0.6:
        return r.choice(
            (
                0,
                -1,
                1,
                value + 1,
                value * 2,
                value // 2,
                value * 1000,
                -value,
                value * 0.5 if abs(value) < 1e300 else 0.5,
                *WHOLE,
            )
        )
    return hostile(r)


def _containers(data: Any) -> list[Any]:
    found = []
    if isinstance(data, dict | list) and data:
        found.append(data)
        for each in data.values() if isinstance(data, dict) else data:
            found += _containers(each)
    return found


def dumped(data: Any) -> bytes:
    """JSON, with NaN and Infinity as Python writes them, and lone surrogates escaped."""
    return json.dumps(data).encode()


def lines(text: bytes, r: Random) -> bytes:
    """A line changed, removed, doubled, cut or moved."""
    rows = text.split(b"\n")
    at = r.randrange(max(1, len(rows) - 1))  # mostly not the empty one at the end
    action = r.randrange(16)
    if action not in range(1, 7):
        rows[at] = dumped(json_value(_parsed(rows[at]), r))
    elif action == 1:
        del rows[at]
    elif action == 2:
        rows.insert(at, rows[at])
    elif action == 3:
        rows[at] = rows[at][: r.randrange(len(rows[at]) + 1)]
    elif action == 4:
        rows.insert(at, rows.pop(r.randrange(len(rows))))
    elif action == 5:
        rows.insert(at, dumped(hostile(r)))
    else:
        rows = rows[: at + 1]
    return b"\n".join(rows)


def _parsed(row: bytes) -> Any:
    try:
        return json.loads(row)
    except ValueError:
        return [row.decode("utf-8", "replace")]


def raw(text: bytes, r: Random) -> bytes:
    """Bytes changed without regard to what they mean."""
    at = r.randrange(len(text) + 1)
    action = r.randrange(8)
    if action == 0:
        return text[:at]
    if action == 1:
        return text[:at] + bytes([r.randrange(256)]) + text[at + 1 :]
    if action == 2:
        return text[:at] + r.choice((b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\t", b"\r", b"\x1b[2J")) + text[at:]
    if action == 3:
        return r.choice((b"\xff\xfe", b"\xef\xbb\xbf", b"\x1f\x8b", b"\x00\x00\xfe\xff", b"PK\x03\x04")) + text
    if action == 4:
        return text.decode("utf-8", "replace").encode(r.choice(("utf-16", "utf-32", "latin-1")), "replace")
    if action == 5:
        return (
            text[:at]
            + r.choice((b"[", b"{", b"(", b"- ", b"-", b"9", b'"', b"&a ", b"? ")) * r.choice((1, 500, 100_000))
            + text[at:]
        )
    if action == 6:
        return text.replace(b"1", b"9" * 5000, 1)
    return text[:at] + text[at:][::-1]


def content(text: bytes, r: Random, gzipped: bool = False) -> Content:
    """The text in a file, or something else where the file is expected."""
    chance = r.random()
    if chance < 0.9:
        if not gzipped or r.random() < 0.03:
            return Content(text)
        packed = gzip.compress(text, 1, mtime=0)
        return Content(raw(packed, r) if r.random() < 0.08 else packed)
    return r.choice(
        (
            Content(),
            Content(b"\n" * 1000),
            Content(kind="folder"),
            Content(b"nowhere", kind="link"),
            Content(b".", kind="link"),
            Content(kind="fifo"),
            Content(kind="device"),
            Content(b"/dev/zero", kind="link"),
            Content(b"\n" * _PATIENT, times=_BOMB, gzipped=True),
            Content(times=_MEMBERS, gzipped=True),
            Content(b"{" * 4_000_000),
            Content(b"x" * 1_000_000, times=20),
            Content(gzip.compress(text, 1, mtime=0)),
        )
    )


def yaml_text(text: bytes, r: Random) -> bytes:
    """What only YAML has: anchors, tags, duplicate keys, tabs, several documents, odd numbers."""
    rows = text.split(b"\n")
    at = r.randrange(len(rows))
    action = r.randrange(8)
    if action == 0:
        rows.insert(at, rows[at])
    elif action == 1:
        rows[at] = rows[at].replace(
            b": ",
            b": "
            + r.choice((b"!!python/object:os.system ", b"!!binary ", b"!!float ", b"!x ", b"&a ", b"*a ", b"<<: ")),
            1,
        )
    elif action == 2:
        return b"name: " + _aliases(r.choice((3, 10, 25))) + b"\n" + text
    elif action == 3:
        rows.insert(
            at,
            r.choice(
                (b"---", b"...", b"%YAML 1.1", b"\t", b"? [a, b]", b"<<: *a", b"{a: 1, a: 2}", b"name: {x: 1, x: 2}")
            ),
        )
    elif action == 4:
        rows[at] = rows[at].replace(b": ", b": " + b"[" * r.choice((10, 500, 5000)), 1)
    elif action == 5:
        rows[at] = (
            rows[at].split(b": ")[0]
            + b": "
            + r.choice(
                (
                    b"0100",
                    b"0o17",
                    b"0x1F",
                    b"1_0",
                    b"1:30",
                    b"190:20:30",
                    b"2001-01-01",
                    b".inf",
                    b".nan",
                    b"~",
                    b"=",
                    b"yes",
                    b"1e1",
                    b"9" * 5000,
                )
            )
        )
    elif action == 6:
        rows[at] = b"  " + rows[at]
    else:
        rows.append(b"seed: 1\nseed: 2")
    return b"\n".join(rows)


def _aliases(levels: int) -> bytes:
    """Each level names the one before ten times."""
    found = b"&b0 [" + b",".join([b"x"] * 10) + b"]"
    for level in range(1, levels):
        found += b", &b%d [" % level + b",".join([b"*b%d" % (level - 1)] * 10) + b"]"
    return b"[" + found + b"]"
