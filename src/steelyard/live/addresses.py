"""Where the parts of a run listen, and where others reach them.

A part writes its address into the run's folder when it begins to listen. Others read it there whenever they connect. So
a part can come back on another machine. All machines must see the same folder.
"""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from steelyard.emulate.servers import listen
from steelyard.errors import UserError
from steelyard.files.finding import is_file
from steelyard.files.reading import read_text
from steelyard.files.writing import write_text
from steelyard.live.access import Access, RunTokens
from steelyard.live.upstream import Upstream

log = logging.getLogger("steelyard.addresses")

HOST = "127.0.0.1"
CONTROLLER, GATEWAY, METRICS = "controller", "gateway", "metrics"  # names of addresses that people look for
TOKENS = "tokens"  # in a run's folder
_ADDRESSES = "addresses"  # in a run's folder


@dataclass(frozen=True)
class PartHost:
    """A part's machine: the address that it listens at, and the one that others reach it by."""

    listen: str = HOST
    reach: str = HOST

    @classmethod
    def of(cls, host: str) -> PartHost:
        """For all parts of one machine. Those that listen at all its addresses meet at the loopback one."""
        return cls(host, HOST if _is_any(host) else host)

    @property
    def is_local(self) -> bool:
        """Whether no other machine can reach it."""
        if self.listen == "localhost":
            return True
        try:
            return ip_address(self.listen).is_loopback
        except ValueError:
            return False  # a name, which may mean any address


LOCAL = PartHost()


@dataclass(frozen=True)
class RunAddresses:
    """The addresses of a run, as a part on some machine needs them."""

    folder: Path
    here: PartHost = LOCAL

    def listen(self, port: int, name: str = "") -> socket.socket:
        """Listen, and tell others where. A port that is taken on this machine is replaced by a free one.

        An address is known by its name, or else by the port that was meant for it.
        """
        if not self.here.is_local and not self.tokens.known:
            why = f"tokens are needed, since other machines can reach {self.here.listen}"
            raise UserError(f"{self.folder / TOKENS}: no such file; {why}")
        try:
            listener = listen(self.here.listen, port)
        except UserError as taken:
            listener = listen(self.here.listen, 0)
            log.warning("%s; listening at port %d instead", taken, listener.getsockname()[1])
        text = f"{self.here.reach}:{listener.getsockname()[1]}\n"
        write_text(self._path(name or str(port)), text)
        return listener

    def find(self, port: int, name: str = "") -> tuple[str, int]:
        """Host and port of an address. Before its part has listened, it is the port that was meant, on this machine."""
        path = self._path(name or str(port))
        if not is_file(path):
            return HOST, port
        host, _, found = read_text(path, wanted="an address of a run").strip().rpartition(":")
        if not host or not found.isdigit():
            raise UserError(f"{path}: must be HOST:PORT")
        return host, int(found)

    def url(self, port: int, name: str = "") -> str:
        """The same as a URL."""
        host, found = self.find(port, name)
        return f"http://{f'[{host}]' if ':' in host else host}:{found}"

    def upstream(self, port: int, name: str, token: str) -> Upstream:
        """The same as a server that can be asked."""
        return Upstream(*self.find(port, name), token)

    @property
    def tokens(self) -> RunTokens:
        """The tokens of the run; none if nobody has made any."""
        return RunTokens.read(self.folder / TOKENS)

    @property
    def access(self) -> Access:
        """Who may do what in this run."""
        return self.tokens.access

    def _path(self, name: str) -> Path:
        return self.folder / _ADDRESSES / name


def _is_any(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
