"""Frames between the ranks and lanes of a training group: a line of JSON, and tensors as raw bytes.

A frame is a fixed head (magic, bytes of JSON, bytes of tensors), the JSON, and the tensors one after the other. Nothing
that comes from the network is unpickled or executed. Every wait has a limit.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import asdict, dataclass, field
from math import prod
from struct import Struct
from typing import Any

import torch
from torch import Tensor

from steelyard.errors import UserError
from steelyard.files.jsontext import parse_json

_HEAD = Struct(">4sIQ")
_MAGIC = b"SYT1"
_MOST_TEXT = 1 << 20  # bytes of JSON: names and shapes of ten thousand tensors
_KINDS = {"f32": torch.float32, "i32": torch.int32, "u8": torch.uint8}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class ChannelFailed(Exception):
    """The other side is gone, took too long, or sent something that is no frame."""


@dataclass(frozen=True)
class Stamp:
    """What a frame is about. An answer that does not carry the stamp of its question is not an answer to it.

    ``epoch`` counts a lane's attempts to join. ``version`` is that of the weights that the step began with, ``updates``
    counts all updates of the optimiser before, and ``part`` the exchanges of gradients within a step.
    """

    epoch: int = 0
    step: int = 0
    version: int = 0
    updates: int = 0
    part: int = 0


@dataclass(frozen=True)
class Frame:
    """One message."""

    kind: str
    stamp: Stamp = field(default_factory=Stamp)
    facts: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)


class Channel:
    """One connection. Only one thread sends and receives at a time; any may close it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def to(cls, host: str, port: int, seconds: float) -> Channel:
        """Connect to a training group."""
        try:
            return cls(socket.create_connection((host, port), timeout=seconds))
        except OSError as problem:
            raise ChannelFailed(f"{host}:{port}: {problem}") from None

    def send(self, frame: Frame, seconds: float) -> None:
        """Send a frame within so many seconds."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in frame.tensors.items()}
        shapes = [[name, _NAMES[tensor.dtype], list(tensor.shape)] for name, tensor in tensors.items()]
        told = {"kind": frame.kind, "stamp": asdict(frame.stamp), "facts": frame.facts, "tensors": shapes}
        text = json.dumps(told).encode()
        total = sum(tensor.nbytes for tensor in tensors.values())
        until = time.monotonic() + seconds
        try:
            self._send(_HEAD.pack(_MAGIC, len(text), total) + text, until)
            for tensor in tensors.values():
                self._send(tensor.view(-1).view(torch.uint8).numpy().data, until)
        except OSError as problem:
            raise ChannelFailed(f"cannot send {frame.kind}: {problem}") from None

    def receive(self, seconds: float, most: int = _MOST_TEXT) -> Frame:
        """The next frame, if it comes within so many seconds and has at most so many bytes of tensors."""
        until = time.monotonic() + seconds
        try:
            magic, length, total = _HEAD.unpack(self._take(_HEAD.size, until))
            if magic != _MAGIC or length > _MOST_TEXT or total > most:
                raise ChannelFailed(f"not a frame, or one of more than {most:,} bytes")
            text = self._take(length, until)
            data = self._take(total, until)
        except OSError as problem:
            raise ChannelFailed(f"no frame: {problem}") from None
        return _read(text, data)

    def close(self) -> None:
        """Close it. A thread that waits for it is woken."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was first
        finally:
            self._socket.close()

    def _send(self, data: bytes | memoryview, until: float) -> None:
        self._socket.settimeout(_left(until))
        self._socket.sendall(data)

    def _take(self, size: int, until: float) -> bytearray:
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            self._socket.settimeout(_left(until))
            count = self._socket.recv_into(view[got:])
            if not count:
                raise ChannelFailed("the connection was closed")
            got += count
        return data


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _read(text: bytearray, data: bytearray) -> Frame:
    """A frame from its parts. What is wrong in any way is no frame."""
    try:
        told = parse_json(text.decode(), "frame")
        stamp = Stamp(**{name: int(value) for name, value in told["stamp"].items()})
        tensors, place = {}, 0
        for name, kind, shape in told["tensors"]:
            tensor, place = _tensor(data, place, _KINDS[kind], [int(each) for each in shape])
            tensors[str(name)] = tensor
        if place != len(data):
            raise ValueError("bytes are left over")
        return Frame(str(told["kind"]), stamp, dict(told["facts"]), tensors)
    except (UserError, UnicodeDecodeError, KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ChannelFailed(f"not a frame: {problem}") from None


def _tensor(data: bytearray, place: int, kind: torch.dtype, shape: list[int]) -> tuple[Tensor, int]:
    if any(each < 0 for each in shape):
        raise ValueError("a negative shape")
    count = prod(shape)
    end = place + count * kind.itemsize
    if end > len(data):
        raise ValueError("bytes are missing")
    if not count:
        return torch.empty(shape, dtype=kind), end
    if place % kind.itemsize:
        raise ValueError("tensors must be ordered by size of element")
    return torch.frombuffer(data, dtype=kind, count=count, offset=place).view(shape), end
