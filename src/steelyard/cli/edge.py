"""The edge of the program: whatever happens inside, a user sees one line and an exit code.

0 is success, 1 a difference that was looked for, 2 a mistake or a refusal of the system, 70 an internal error, 130 an
interrupt. A traceback goes to a file, and to the terminal only with ``--debug``.
"""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

from steelyard.cli.signals import signals_as_interrupts
from steelyard.errors import UserError
from steelyard.quoting import message, printable, shortened

MISTAKE, INTERNAL, INTERRUPTED = 2, 70, 130
_DEBUG = "--debug"
_MOST_SHOWN = 2000  # characters of a line
# What only standard output can be refused with: files are written by `steelyard.files`, which names them.
_OUTPUT = {errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT, errno.EBADF}


def guarded(run: Callable[[list[str]], None], arguments: Sequence[str]) -> int:
    """Run the program with its arguments; its exit code."""
    _open_streams()
    atexit.register(gc.freeze)  # otherwise the garbage collector scans everything once more at exit
    given, debug = _without_debug(arguments)
    before = sys.stdout
    try:
        with signals_as_interrupts():
            code = _code_of(run, given, debug)
            if code != INTERRUPTED:
                sys.stdout.flush()
            if sys.stdout is not before:  # typer has met a closed pipe
                raise BrokenPipeError(errno.EPIPE, "Broken pipe")
    except OSError as error:
        code = _say(f"standard output: cannot be written: {error.strerror}")
    except ValueError as error:  # it was closed inside
        code = _say(f"standard output: cannot be written: {error}")
    except KeyboardInterrupt:
        code = INTERRUPTED
    for stream in (sys.stdout, sys.stderr):
        _drop_if_broken(stream)
    return code


def _code_of(run: Callable[[list[str]], None], arguments: list[str], debug: bool) -> int:
    try:
        run(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else MISTAKE if stop.code else 0
    except UserError as error:
        return _say(*error.args)
    except OSError as error:
        if error.filename is None and error.errno in _OUTPUT:
            raise
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return _say(f"{where}{error.strerror or error}")
    except Exception as error:
        if _is_interrupt(error):
            raise KeyboardInterrupt from None
        return _report(error, arguments, debug)
    return 0


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an interrupt is the cause of an error: Python wraps what is raised while it makes a class."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def _say(*lines: str) -> int:
    """Tell a mistake. A standard error that cannot be written is no reason to fail otherwise."""
    with suppress(OSError, ValueError):
        print("error: " + "\n".join(map(one_line, lines)), file=sys.stderr, flush=True)
    return MISTAKE


def one_line(text: str) -> str:
    """A line for the terminal. It quotes arguments in part if they are long, even those of many words."""
    for each in map(printable, sys.argv):
        text = text.replace(each, shortened(each))
    return shortened(message(text), _MOST_SHOWN)


def _report(error: Exception, arguments: Sequence[str], debug: bool) -> int:
    """Tell an internal error, and keep what its mending needs in a file."""
    from steelyard.cli.crash import write_report

    if debug:
        import traceback

        traceback.print_exception(error)
    kind = type(error).__name__
    what = "out of memory" if isinstance(error, MemoryError) else message(f"{kind}: {str(error)[:500]}")
    try:
        path = write_report(error, arguments)
        _say(f"internal error: {what}; please report it with the file {path}")
    except Exception:  # the disk is full, or memory is short
        _say(f"internal error: {what}; no report of it could be written (--debug prints one)")
    return INTERNAL


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """The other arguments, and whether --debug is among them."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own = [each for each in arguments[:end] if each != _DEBUG]
    return [*own, *arguments[end:]], len(own) < end


def _open_streams() -> None:
    """Streams that a user closed are as good as open, and characters that one cannot show are no error."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop_if_broken(stream: TextIO) -> None:
    """What a stream did not take is not tried again at exit."""
    try:
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
