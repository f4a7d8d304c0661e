"""A gateway's log of requests, one JSON line each: when it came, its tokens, and a hash of its session. No contents.

`steelyard advise` and scenarios read it as a trace. Tokens are what the engine's usage says. In a stream without usage
each event counts as a token, though it may hold several; a prompt that nobody has counted is null.
"""

from __future__ import annotations

import secrets
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from steelyard.files.writing import appending

_EVENT = b"data: {"
_MOST_WHOLE = 1 << 26  # bytes of an answer in which usage is looked for
_TAIL = 1 << 14  # bytes at the end of a stream in which usage is looked for


class AccessLog:
    """Adds lines to a file. Session names are hashed with a key of this process, so they cannot be guessed."""

    def __init__(self, path: Path) -> None:
        self._file = appending(path, alone=True)
        self._key = secrets.token_bytes(16)

    def begin(self, asked: dict[str, Any], session: str | None) -> LoggedRequest:
        """A request has come."""
        hashed = None if session is None else blake2b(session.encode(), digest_size=8, key=self._key).hexdigest()
        return LoggedRequest(self, asked, hashed)

    def write(self, line: dict[str, Any]) -> None:
        """Add a line; whole at once, so that readers never see half of it but at a crash."""
        self._file.write(orjson.dumps(line).decode() + "\n")
        self._file.flush()

    def close(self) -> None:
        """End the log."""
        self._file.close()


class LoggedRequest:
    """One request, while its answer passes."""

    def __init__(self, log: AccessLog, asked: dict[str, Any], session: str | None) -> None:
        self._log, self._session, self._at = log, session, time.time()
        prompt = asked.get("prompt")
        counted = isinstance(prompt, list) and bool(prompt) and all(isinstance(each, int) for each in prompt)
        self._prompt = len(prompt) if counted and isinstance(prompt, list) else None
        self._events = 0
        self._seen = bytearray()

    def saw(self, part: bytes, streams: bool) -> None:
        """A part of the answer was passed on."""
        if streams:
            start = max(0, len(self._seen) - len(_EVENT) + 1)
            self._seen += part
            self._events += self._seen.count(_EVENT, start)
            del self._seen[:-_TAIL]
        elif len(self._seen) + len(part) <= _MOST_WHOLE:
            self._seen += part

    def ended(self, streams: bool) -> None:
        """The answer is over, or its client has left."""
        usage = _stream_usage(bytes(self._seen)) if streams else _usage(bytes(self._seen))
        output = usage.get("completion_tokens", self._events if streams else None)
        prompt = usage.get("prompt_tokens", self._prompt)
        line = {"at": self._at, "prompt_tokens": prompt, "output_tokens": output, "session": self._session}
        self._log.write(line)


def _usage(text: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    usage = answer.get("usage") if isinstance(answer, dict) else None
    return usage if isinstance(usage, dict) else {}


def _stream_usage(tail: bytes) -> dict[str, Any]:
    """The usage of the last event that has one."""
    for event in reversed(tail.split(b"\n\n")):
        if event.startswith(_EVENT) and b'"usage"' in event and (usage := _usage(event[len(_EVENT) - 1 :])):
            return usage
    return {}
