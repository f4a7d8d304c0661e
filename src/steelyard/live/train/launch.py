"""Starts workers of a training group on this machine."""

from __future__ import annotations

import os
import subprocess
import sys

from steelyard.live.train.door import SECRET, Role


def start_worker(address: str, secret: str, role: Role, name: str) -> subprocess.Popen[bytes]:
    """A process that is a core rank (by number) or a lane (by name). It ends when the group does, and is killed when
    this process ends in any way, so that its GPU is free then."""
    command = [sys.executable, "-m", "steelyard.live.train.worker", address, f"--{role}", name, "--with-parent"]
    return subprocess.Popen(command, env={**os.environ, SECRET: secret}, stdin=subprocess.DEVNULL)
