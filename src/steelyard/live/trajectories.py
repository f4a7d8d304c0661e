"""What the gateway offers for trajectories of post-training, beside OpenAI's interface.

A request with the header ``X-Session-ID`` is the next turn of that trajectory. Its client tells what came of tools, in
``tool`` messages or by ``tool_return``, and when the trajectory is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson
from starlette.types import Send

from steelyard.live.desk import TurnDesk
from steelyard.live.journal import StoredTurn
from steelyard.live.live_trajectory import LiveTrajectory, ToolReturn, TurnRefused
from steelyard.live.turns import TurnRequest
from steelyard.records import OUTCOMES

TRAJECTORIES = "/v1/trajectories/"
MOST_TURNS = 100_000
MOST_TOKENS = 1 << 31  # of what a tool returned
LONGEST_NAME = 200
_TOLD = ("tool_return", "end", "abort")  # what clients tell of a trajectory
_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]
_BROKEN = b'data: {"error":{"message":"the turn broke off; ask for it again","type":"GatewayError","code":502}}\n\n'


class TrajectoryTarget(NamedTuple):
    """What a path below ``/v1/trajectories/`` means: a trajectory, what is told of it (nothing: it is read), and the
    method that this takes."""

    name: str
    what: str
    method: str


def trajectory_target(path: str) -> TrajectoryTarget:
    """Of a path as it was sent. A name that ends in one of our words has to have its slashes as ``%2F``."""
    rest = path.removeprefix(TRAJECTORIES)
    name, _, what = rest.rpartition("/")
    if name and what in _TOLD:
        return TrajectoryTarget(unquote(name), what, "POST")
    return TrajectoryTarget(unquote(rest), "", "GET")


def turn_request(
    path: str, body: Mapping[str, Any], session: str, group: str | None, headers: Mapping[str, str]
) -> TurnRequest:
    """A client's request as a turn."""
    prompt = body.get("prompt")
    if body.get("n") not in (None, 1) or (isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)):
        raise TurnRefused(400, "prompt, n: a turn has one prompt and one answer")
    turn = headers.get("x-turn", body.get("turn"))
    if turn is not None:
        turn = str(turn)
        if not turn.isascii() or not turn.isdigit() or len(turn) > 9 or int(turn) >= MOST_TURNS:
            raise TurnRefused(400, f"turn: must be a whole number from 0 to {MOST_TURNS - 1:,}")
        turn = int(turn)
    return TurnRequest(session, path, body, turn, group or "", group or "")


def trajectory_call(desk: TurnDesk, name: str, what: str, body: bytes) -> dict[str, Any]:
    """Read a trajectory, or take what a client tells of it."""
    if not what:
        return _stored(desk, name)
    row = _object(body)
    if what == "tool_return":
        desk.tool_returned(name, _tool_return(row))
    elif what == "end":
        desk.end(name, _reward(row))
    else:
        _abort(desk, name)
    return {"trajectory": name}


async def stream_turn(
    found: LiveTrajectory, task: asyncio.Task[StoredTurn], send: Send, first: Callable[[], None]
) -> None:
    """The turn that a task runs, as a stream of chunks; ``first`` is called before the first. A client that comes back
    gets it from the start."""
    chunks, sent = found.chunks, 0
    while True:
        if not sent and _restarted(found, task, chunks):
            chunks = found.chunks
        new = b"".join(chunks[sent:])
        if new:
            if not sent:
                first()
                await _send_stream_start(send)
            sent = len(chunks)
            await send({"type": "http.response.body", "body": new, "more_body": True})
        if task.done() or (sent and _restarted(found, task, chunks)):
            break
        found.chunk_came.clear()
        if sent == len(chunks):  # chunks may have come while the last ones were sent
            await found.chunk_came.wait()
    if not sent:  # it failed, or it was first asked for without a stream
        await send_at_once(send, _result(task))
        return
    broken = not ended_well(task) or _restarted(found, task, chunks)
    await _send_end(send, _BROKEN if broken else b"".join(chunks[sent:]))


def _restarted(found: LiveTrajectory, task: asyncio.Task[StoredTurn], chunks: list[bytes]) -> bool:
    """Whether the turn of a task has begun again, so that its first chunks do not count any more."""
    return found.chunks is not chunks and found.task in (task, None)


def ended_well(task: asyncio.Task[StoredTurn]) -> bool:
    """Whether a turn is over, and has an answer."""
    return task.done() and not task.cancelled() and task.exception() is None


def _result(task: asyncio.Task[StoredTurn]) -> StoredTurn:
    if task.cancelled():
        raise TurnRefused(410, "this trajectory was given up")
    return task.result()


async def send_at_once(send: Send, stored: StoredTurn) -> None:
    """A whole turn, as a stream of one chunk."""
    await _send_stream_start(send)
    await _send_end(send, b"data: " + orjson.dumps(stored.answer) + b"\n\n")


async def _send_stream_start(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": _STREAM})


async def _send_end(send: Send, last: bytes) -> None:
    await send({"type": "http.response.body", "body": last + b"data: [DONE]\n\n", "more_body": False})


def _stored(desk: TurnDesk, name: str) -> dict[str, Any]:
    found = desk.journal.trajectory(name)
    if found is None:
        raise TurnRefused(404, "no such trajectory")
    return {**asdict(found), "context": found.context, "generated": found.generated}


def _abort(desk: TurnDesk, name: str) -> None:
    if name not in desk.running:
        stored = desk.journal.trajectory(name)
        if stored is None:
            raise TurnRefused(404, "no such trajectory")
        if stored.fate == "ended":
            raise TurnRefused(410, "this trajectory has ended")
    desk.abort([name])


def _tool_return(row: Mapping[str, Any]) -> ToolReturn:
    tool, outcome, tokens = row.get("tool", "tool"), row.get("outcome", "ok"), row.get("tokens")
    if not isinstance(tool, str) or len(tool) > LONGEST_NAME:
        raise TurnRefused(400, f"tool: must be a name of at most {LONGEST_NAME} characters")
    if outcome not in OUTCOMES:
        raise TurnRefused(400, f"outcome: must be one of {', '.join(OUTCOMES)}")
    if tokens is not None and (not _is_number(tokens, int) or not 0 <= tokens < MOST_TOKENS):
        raise TurnRefused(400, f"tokens: must be a whole number below {MOST_TOKENS:,}")
    return ToolReturn(tool, outcome, tokens)


def _reward(row: Mapping[str, Any]) -> float | None:
    reward = row.get("reward")
    if reward is not None and not _is_number(reward, int | float):
        raise TurnRefused(400, "reward: must be a number")
    return None if reward is None else float(reward)  # the journal takes no whole number above 64 bits


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body or b"{}")
    except ValueError:
        raise TurnRefused(400, "the body is not valid JSON") from None
    if not isinstance(found, dict):
        raise TurnRefused(400, "the body must be a JSON object")
    return found
