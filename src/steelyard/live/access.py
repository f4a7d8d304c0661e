"""Who may do what: bearer tokens with scopes, kept as hashes in memory and compared in constant time."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args

from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from steelyard.errors import UserError
from steelyard.files.finding import is_file
from steelyard.files.reading import text_lines
from steelyard.files.writing import write_secret

Scope = Literal["client", "engine", "operator"]
"""Clients send requests. Engines report themselves. Operators do everything."""

_SHORTEST = 16  # characters of a token


@dataclass(frozen=True)
class Access:
    """Known tokens. Without any, everybody on this machine may do everything."""

    tokens: tuple[tuple[bytes, Scope], ...] = ()

    @classmethod
    def read(cls, path: Path) -> Access:
        """A file with a scope and a token on each line."""
        return cls.of(_read_tokens(path))

    @classmethod
    def of(cls, tokens: list[tuple[Scope, str]]) -> Access:
        """Tokens that are known here."""
        return cls(tuple((_hashed(token), scope) for scope, token in tokens))

    def allows(self, authorization: str, scope: Scope) -> bool | None:
        """Whether an Authorization header allows this; None if it has no token that is known."""
        if not self.tokens:
            return True
        kind, _, token = authorization.partition(" ")
        hashed = _hashed(token.strip()) if kind.lower() == "bearer" else b""
        scopes = [own for known, own in self.tokens if hmac.compare_digest(known, hashed)]
        if not scopes:
            return None
        return scope in scopes or "operator" in scopes


@dataclass(frozen=True)
class RunTokens:
    """The tokens that parts of a run show to each other. Without a file of them there are none, and all are let in."""

    known: tuple[tuple[Scope, str], ...] = field(default=(), repr=False)
    by_scope: Mapping[Scope, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, path: Path) -> RunTokens:
        """The tokens of a file, if it is there. It must have one of each scope."""
        if not is_file(path):
            return cls()
        found = _read_tokens(path)
        by_scope = dict(reversed(found))
        lacking = [scope for scope in get_args(Scope) if scope not in by_scope]
        if lacking:
            raise UserError(f"{path}: has no token of the scope {' and '.join(lacking)}, which the parts of a run need")
        return cls(tuple(found), by_scope)

    @property
    def access(self) -> Access:
        """Who has one of these may come in."""
        return Access.of(list(self.known))

    def of(self, scope: Scope) -> str:
        """A token with a scope; empty if nobody asks for one."""
        return self.by_scope.get(scope, "")


def make_tokens(path: Path, given: Path | None = None) -> None:
    """Write a run's file of tokens, which only its owner can read: new ones, or those of another file."""
    if given is not None:
        lines = [f"{scope} {token}" for scope, token in RunTokens.read(_existing(given)).known]
    elif is_file(path):
        return
    else:
        lines = [f"{scope} {secrets.token_urlsafe(32)}" for scope in get_args(Scope)]
    write_secret(path, "\n".join([*lines, ""]))


def guarded(app: ASGIApp, access: Access, scope: Scope) -> ASGIApp:
    """An application that answers only requests with a token of this scope."""

    async def guard(connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] == "http":
            headers = dict(connection["headers"])
            allowed = access.allows(headers.get(b"authorization", b"").decode("latin-1"), scope)
            if not allowed:
                status = 401 if allowed is None else 403
                challenge = [(b"www-authenticate", b"Bearer")] if allowed is None else []
                await send({"type": "http.response.start", "status": status, "headers": challenge})
                await send({"type": "http.response.body", "body": b""})
                return
        await app(connection, receive, send)

    return guard if access.tokens else app


def _existing(path: Path) -> Path:
    if not is_file(path):
        raise UserError(f"{path}: no such file; give a file with a scope and a token on each line")
    return path


def _read_tokens(path: Path) -> list[tuple[Scope, str]]:
    found: list[tuple[Scope, str]] = []
    for number, line in text_lines(path, "a file of tokens"):
        if line.startswith("#"):
            continue
        match line.split():
            case [("client" | "engine" | "operator") as scope, token] if len(token) >= _SHORTEST:
                found.append((scope, token))
            case _:  # its content is a secret, so it is not shown
                scopes = ", ".join(get_args(Scope))
                raise UserError(
                    f"{path}:{number}: must be a scope ({scopes}) and a token of at least {_SHORTEST} characters"
                )
    if not found:
        raise UserError(f"{path}: has no token; give a scope and a token on each line")
    return found


def _hashed(token: str) -> bytes:
    return sha256(token.encode(errors="surrogatepass")).digest()
