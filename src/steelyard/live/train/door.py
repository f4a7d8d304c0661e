"""Where ranks and lanes connect: only those that know the group's secret come in."""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Callable
from threading import Thread
from typing import Literal

from steelyard.errors import UserError
from steelyard.live.train.frames import Channel, ChannelFailed, Frame

Role = Literal["rank", "lane"]
Entered = Callable[[Role, str, Channel], None]
SECRET = "STEELYARD_TRAINING_SECRET"
"""The environment variable in which workers find the secret: a command line can be seen by everybody."""

_GREETING_SECONDS = 10.0  # chosen
_BACKLOG = 128  # connections that wait to be accepted


class Door:
    """Listens, and calls ``entered`` in a thread of its own for each worker that has proved itself."""

    def __init__(self, host: str, port: int, secret: str, entered: Entered) -> None:
        self._secret = secret
        self._entered = entered
        try:
            self._listener = socket.create_server((host, port), backlog=_BACKLOG)
        except (OSError, OverflowError) as problem:
            raise UserError(f"{host}:{port}: a training group cannot listen there: {problem}") from None
        self.host, self.port = host, int(self._listener.getsockname()[1])
        Thread(target=self._listen, name="door", daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # nobody was waiting
        finally:
            self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            Thread(target=self._greet, args=(connection,), name="worker", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        channel = Channel(connection)
        challenge = secrets.token_hex(16)
        try:
            channel.send(Frame("challenge", facts={"challenge": challenge}), _GREETING_SECONDS)
            hello = channel.receive(_GREETING_SECONDS)
            role, name = hello.facts.get("role"), str(hello.facts.get("name"))
            given = str(hello.facts.get("proof"))
            wanted = proof(self._secret, challenge, str(role), name)
            if role not in ("rank", "lane") or not hmac.compare_digest(given.encode(), wanted.encode()):
                raise ChannelFailed("a worker without the secret")
            answer = proof(self._secret, str(hello.facts.get("challenge")), "group", name)
            channel.send(Frame("entered", facts={"proof": answer}), _GREETING_SECONDS)
        except ChannelFailed:
            channel.close()
            return
        self._entered("rank" if role == "rank" else "lane", name, channel)


def knock(host: str, port: int, secret: str, role: Role, name: str) -> Channel:
    """A worker's connection to its group. Each side shows the other that it knows the secret."""
    channel = Channel.to(host, port, _GREETING_SECONDS)
    own, challenge = secrets.token_hex(16), str(channel.receive(_GREETING_SECONDS).facts.get("challenge"))
    facts = {"role": role, "name": name, "proof": proof(secret, challenge, role, name), "challenge": own}
    channel.send(Frame("hello", facts=facts), _GREETING_SECONDS)
    answer = str(channel.receive(_GREETING_SECONDS).facts.get("proof"))
    if not hmac.compare_digest(answer.encode(), proof(secret, own, "group", name).encode()):
        raise ChannelFailed(f"{host}:{port}: another group, or none")
    return channel


def proof(secret: str, challenge: str, role: str, name: str) -> str:
    """Shows knowledge of the secret without telling it."""
    return hmac.new(secret.encode(), f"{challenge} {role} {name}".encode(), "sha256").hexdigest()
