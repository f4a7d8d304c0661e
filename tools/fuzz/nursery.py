"""Runs cases in child processes of a process that has imported everything, so that a case costs milliseconds.

A child has a folder of its own, and limits on time and memory. It is killed when it goes over them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from steelyard import cli
from tools.fuzz.case import Case

SECONDS = 20  # of CPU time
_PATIENCE = 3  # times as many seconds on the clock, on a busy machine
BYTES = 1 << 30
_ROOM = 1 << 29  # address space beyond the limit, so that a child that goes over it is seen to
_READ = 1 << 16  # bytes of its output that are looked at
UNCAUGHT = 97  # exit code of a child whose command raised


@dataclass(frozen=True)
class Outcome:
    """What came of a case. ``code`` is negative if a signal ended it."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    peak_bytes: int
    timed_out: bool
    left: tuple[str, ...]  # paths that were not there before
    changed: tuple[str, ...]  # paths that were there before, and are not or are something else


def warm_up() -> None:
    """Import every command once, so that children do not have to."""
    for name in cli.COMMANDS:
        if name != "profile":
            import_module(f"steelyard.cli.{name.replace('-', '_')}")
    for name in ("pyarrow.parquet", "rich.table", "steelyard.posttrain.check"):
        import_module(name)


def run(case: Case) -> Outcome:
    """Run a case in a folder of its own, which is removed afterwards."""
    home = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        folder, said = home / "work", home / "said"
        folder.mkdir()
        said.mkdir()
        case.lay_out(folder)
        before = _contents(folder)
        inherited = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        child = os.fork()
        if not child:
            _be_child(case, folder, said)
        code, usage, timed_out = _wait(child)
        after = _contents(folder)
        return Outcome(
            code=code,
            stdout=_text(said / "stdout"),
            stderr=_text(said / "stderr"),
            seconds=usage.ru_utime + usage.ru_stime,
            peak_bytes=max(0, usage.ru_maxrss * 1024 - inherited),  # a test runner may have loaded anything
            timed_out=timed_out,
            left=tuple(sorted(after.keys() - before.keys())),
            changed=tuple(sorted(path for path, found in before.items() if after.get(path) != found)),
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _be_child(case: Case, folder: Path, said: Path) -> None:
    """Run the command, as `steelyard` would. Never returns."""
    try:
        os.setsid()
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(said / name, os.O_CREAT | os.O_WRONLY, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
        os.chdir(folder)
        os.environ["HOME"] = str(folder)
        tempfile.tempdir = str(said)  # where reports of internal errors go
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (size + BYTES + _ROOM, size + BYTES + _ROOM))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, BYTES))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        sys.argv = ["steelyard", "--debug", *case.command]  # tracebacks are looked for
        cli.main()
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
        code = UNCAUGHT
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _wait(child: int) -> tuple[int, resource.struct_rusage, bool]:
    """The child's exit code, what it used, and whether it had to be stopped. Its own children end with it."""
    watch = os.pidfd_open(child)
    try:
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        late = not poll.poll(1000 * _PATIENCE * SECONDS)
        if late:
            os.kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
    finally:
        os.close(watch)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    return code, usage, late or code in (-signal.SIGXCPU, -signal.SIGKILL)


def _contents(folder: Path) -> Mapping[str, tuple[int, int, int]]:
    """Type, size and time of change of everything in a folder, by relative path."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(parent, name)
            status = os.lstat(path)
            kind = status.st_mode >> 12
            own = (kind, 0, 0) if name in folders else (kind, status.st_size, status.st_mtime_ns)
            found[os.path.relpath(path, folder)] = own
    return found


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_READ).decode("utf-8", "backslashreplace")
