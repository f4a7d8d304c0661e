"""Holds an engine: a small process between an agent and its engine, so that nothing of the engine outlives the agent.

It is run as a file, and imports the standard library alone. The engine gets a process group of its own. All of that
group ends when the agent ends, however that happens, when this process is told to, and when the engine itself has
ended. The exit code is the engine's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from types import FrameType

_PR_SET_PDEATHSIG = 1  # of Linux's prctl
_LOOK_SECONDS = 0.5  # between two looks at the agent, where the system does not tell of its end; chosen
_NOT_STARTED = 127  # exit code, as of a shell


class _Told(Exception):
    """This process was told to end."""


def main(agent: int, grace: float, command: list[str]) -> int:
    """Run an engine until it ends or its agent does. It has ``grace`` seconds to end by itself."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _tell)
    try:
        signal_at_end_of_parent(signal.SIGTERM)
        try:
            engine = subprocess.Popen(command, process_group=0, preexec_fn=_end_with_leash)
        except OSError as problem:
            print(f"{command[0]}: {problem.strerror}", file=sys.stderr)
            return _NOT_STARTED
    except _Told:
        return 0
    try:
        while os.getppid() == agent:
            with suppress(subprocess.TimeoutExpired):
                return _shown(engine.wait(_LOOK_SECONDS))
    except _Told:
        pass
    finally:
        _end(engine, grace)
    return _shown(engine.wait())


def _end(engine: subprocess.Popen[bytes], grace: float) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # it is ending already
    if engine.poll() is None:
        _send(engine.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            engine.wait(grace)
    _send(engine.pid, signal.SIGKILL)  # it, and processes that it left behind


def _send(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _tell(number: int, frame: FrameType | None) -> None:
    raise _Told


def _end_with_leash() -> None:
    """In the engine: if this process is killed, so is the engine."""
    signal_at_end_of_parent(signal.SIGKILL)


def signal_at_end_of_parent(number: signal.Signals) -> None:
    """Have this process get a signal when its parent ends, where the system can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def _shown(code: int) -> int:
    """An exit code as shells have it: 128 and the number of a signal."""
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
