"""Who may do what: bearer tokens with scopes, kept as hashes in memory and compared in constant time."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args

from steelyard.errors import UserError
from steelyard.files.reading import text_lines

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
        found: list[tuple[bytes, Scope]] = []
        for number, line in text_lines(path, "a file of tokens"):
            if line.startswith("#"):
                continue
            match line.split():
                case [("client" | "engine" | "operator") as scope, token] if len(token) >= _SHORTEST:
                    found.append((_hashed(token), scope))
                case _:  # its content is a secret, so it is not shown
                    scopes = ", ".join(get_args(Scope))
                    raise UserError(
                        f"{path}:{number}: must be a scope ({scopes}) and a token of at least {_SHORTEST} characters"
                    )
        if not found:
            raise UserError(f"{path}: has no token; give a scope and a token on each line")
        return cls(tuple(found))

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


def _hashed(token: str) -> bytes:
    return sha256(token.encode(errors="surrogatepass")).digest()
