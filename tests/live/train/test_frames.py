"""The wire: frames come through whole, and what is no frame is refused without harm."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from threading import Thread

import pytest
import torch

from steelyard.live.train.door import Door, knock
from steelyard.live.train.frames import Channel, ChannelFailed, Frame, Stamp


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    """A channel and the plain socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = socket.create_connection(listener.getsockname())
        channel = Channel(listener.accept()[0])
        yield channel, other
        channel.close()
        other.close()


def test_frames_come_through(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    tensors = {
        "matrix": torch.arange(6, dtype=torch.float32).view(2, 3),
        "empty": torch.empty(0, dtype=torch.int32),
        "scalar": torch.tensor(7, dtype=torch.int32),
        "bytes": torch.tensor([1, 2, 3], dtype=torch.uint8),
    }
    Channel(other).send(Frame("state", Stamp(1, 2, 3, 4, 5), {"a": [1, "b", None]}, tensors), 5)
    found = channel.receive(5)
    assert (found.kind, found.stamp, found.facts) == ("state", Stamp(1, 2, 3, 4, 5), {"a": [1, "b", None]})
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype and torch.equal(found.tensors[name], tensor)


def _bytes(told: object, data: bytes = b"", total: int | None = None, magic: bytes = b"SYT1") -> bytes:
    text = told if isinstance(told, bytes) else json.dumps(told).encode()
    return struct.pack(">4sIQ", magic, len(text), len(data) if total is None else total) + text + data


def _told(**changed: object) -> dict[str, object]:
    return {"kind": "x", "stamp": {}, "facts": {}, "tensors": [], **changed}


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not a frame"),
        (_bytes(_told(), magic=b"SYT0"), "not a frame"),
        (_bytes(b"\xff\xfe"), "not a frame"),
        (_bytes(b"{"), "not a frame"),
        (_bytes(b"[" * 100_000), "not a frame"),
        (_bytes([1]), "not a frame"),
        (_bytes(_told(stamp={"other": 1})), "not a frame"),
        (_bytes(_told(stamp={"epoch": "x"})), "not a frame"),
        (_bytes(_told(tensors=[["a", "f32", [2]]]), b"1234"), "missing"),
        (_bytes(_told(tensors=[["a", "f32", [-1]]]), b"1234"), "negative"),
        (_bytes(_told(tensors=[["a", "object", [1]]]), b"1234"), "not a frame"),
        (_bytes(_told(tensors=[["a", "u8", [1]], ["b", "f32", [1]]]), b"12345"), "ordered"),
        (_bytes(_told(), b"1234"), "left over"),
        (_bytes(_told(), total=1 << 50), "more than"),
    ],
)
def test_what_is_no_frame_is_refused(pair: tuple[Channel, socket.socket], sent: bytes, told: str) -> None:
    channel, other = pair
    other.sendall(sent)
    with pytest.raises(ChannelFailed, match=told):
        channel.receive(5)


def test_half_a_frame_times_out_or_breaks_off(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    other.sendall(_bytes(_told())[:-3])
    with pytest.raises(ChannelFailed, match="timed out"):
        channel.receive(0.05)
    other.close()
    with pytest.raises(ChannelFailed):
        channel.receive(5)


def test_closing_wakes_a_thread_that_waits(pair: tuple[Channel, socket.socket]) -> None:
    channel, _ = pair
    woken: list[str] = []

    def wait() -> None:
        try:
            channel.receive(60)
        except ChannelFailed as problem:
            woken.append(str(problem))

    thread = Thread(target=wait)
    thread.start()
    channel.close()
    thread.join(30)
    assert woken


@pytest.fixture
def door() -> Iterator[tuple[Door, list[tuple[str, str]]]]:
    """A door, and who has come in."""
    entered: list[tuple[str, str]] = []
    found = Door("127.0.0.1", 0, "right", lambda role, name, channel: entered.append((role, name)))
    yield found, entered
    found.close()


def test_the_secret_opens_the_door(door: tuple[Door, list[tuple[str, str]]]) -> None:
    knock("127.0.0.1", door[0].port, "right", "lane", "a").close()
    with pytest.raises(ChannelFailed):
        knock("127.0.0.1", door[0].port, "wrong", "lane", "b").close()
    assert ("lane", "b") not in door[1]


def test_a_proof_is_good_for_one_connection_only(door: tuple[Door, list[tuple[str, str]]]) -> None:
    first = Channel.to("127.0.0.1", door[0].port, 5)
    second = Channel.to("127.0.0.1", door[0].port, 5)
    challenges = {str(each.receive(5).facts["challenge"]) for each in (first, second)}
    assert len(challenges) == 2
    first.close()
    second.close()
