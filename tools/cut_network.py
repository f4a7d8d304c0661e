"""A run on two machines whose network is cut and comes back: `python -m tools.cut_network` (Linux, with `unshare`)

The machines are two network namespaces with a cable between them, and share a folder. One has the controller and the
gateway, the other one agents, trainer and engines. When the cable is cut, these are started on the first machine, too,
as Ray would do it. When it is mended, the old ones are still there. Nothing may be lost or counted twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from steelyard.live.access import make_tokens
from steelyard.live.addresses import TOKENS
from steelyard.live.emulated.run import EmulatedRun
from steelyard.live.runs import is_over
from steelyard.scenario import posttrain_from_dict
from tools.lost_nodes import SCENARIO, checked, event_times

_INSIDE = "--inside"
_HERE, _THERE = "10.8.0.1", "10.8.0.2"
_SPEED = 1.5


def main() -> None:
    """Begin again in a network namespace of our own, and run there."""
    if _INSIDE not in sys.argv:
        sys.exit(subprocess.call(["unshare", "-rn", sys.executable, "-m", "tools.cut_network", _INSIDE]))
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        other = _started(stack, ["unshare", "-n", "sleep", "600"])
        _connect(other.pid)
        run = EmulatedRun.at_free_ports(posttrain_from_dict(SCENARIO), Path(folder), _SPEED)
        run.write()
        make_tokens(run.folder / TOKENS)
        _run(run, stack, other.pid)


def _run(run: EmulatedRun, stack: ExitStack, other: int) -> None:
    controller, gateway, *rest = run.parts
    for name in (controller, gateway):
        _start(stack, run, name, _HERE)
    for name in rest:
        _start(stack, run, name, _THERE, other)
    while len(event_times(run, _SPEED)) < 100:
        time.sleep(0.1)
    _call("ip", "link", "set", "here", "down")
    cut = time.time()
    print(f"{len(event_times(run, _SPEED))} events, then the network is cut")
    for name in rest:
        _start(stack, run, name, _HERE)
    time.sleep(15)
    _call("ip", "link", "set", "here", "up")
    late = [at for at in event_times(run, _SPEED) if at > cut]
    print(f"the first of {len(late)} events on one machine came after {late[0] - cut:.1f} s; the network is back")
    while not is_over(run):
        time.sleep(0.2)
    print(checked(run))


def _connect(other: int) -> None:
    """A cable between this namespace and that of another process."""
    time.sleep(0.5)  # until it has one
    there = ("nsenter", "-t", str(other), "-n")
    _call("ip", "link", "add", "here", "type", "veth", "peer", "name", "there")
    _call("ip", "link", "set", "there", "netns", str(other))
    for words, name, address in (((), "here", _HERE), (there, "there", _THERE)):
        _call(*words, "ip", "addr", "add", f"{address}/24", "dev", name)
        _call(*words, "ip", "link", "set", name, "up")
        _call(*words, "ip", "link", "set", "lo", "up")


def _call(*words: str) -> None:
    subprocess.run(words, check=True)


def _start(stack: ExitStack, run: EmulatedRun, name: str, host: str, namespace: int | None = None) -> None:
    enter = [] if namespace is None else ["nsenter", "-t", str(namespace), "-n"]
    words = [sys.executable, "-m", "steelyard.live.process", str(run.folder), name, host, host]
    _started(stack, [*enter, *words])


def _started(stack: ExitStack, words: list[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, env=os.environ)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


if __name__ == "__main__":
    main()
