"""Signals that ask the program to end. All are handled as Ctrl-C is: what is partial is removed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN_SECONDS = 2.0  # signals that come sooner after another are part of it, and do not disturb the cleaning up
_SOON_SECONDS = 0.01  # after which a lost signal is sent again


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """A request to end, or a closed terminal, raises KeyboardInterrupt in the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = (signal.SIG_DFL, signal.default_int_handler)
    wanted = [each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) in usual]
    interrupts = _Interrupts()
    before = {each: signal.signal(each, interrupts.interrupt) for each in wanted}
    hook, sys.unraisablehook = sys.unraisablehook, interrupts.not_raised
    try:
        yield
    finally:
        sys.unraisablehook = hook
        interrupts.stop()
        for each, handler in before.items():
            signal.signal(each, handler)


class _Interrupts:
    """Raises an interrupt for each signal, and once more where Python cannot raise: in finalizers and callbacks."""

    def __init__(self) -> None:
        self._hook = sys.unraisablehook
        self._last = -_AGAIN_SECONDS
        self._number = int(signal.SIGINT)
        self._again: threading.Timer | None = None

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if now - self._last >= _AGAIN_SECONDS:
            self._last, self._number = now, number
            raise KeyboardInterrupt

    def not_raised(self, lost: UnraisableHookArgs) -> None:
        """Send a signal again whose interrupt was lost. All else is told as before."""
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            self._hook(lost)
            return
        self._last = -_AGAIN_SECONDS
        self._again = threading.Timer(_SOON_SECONDS, os.kill, (os.getpid(), self._number))
        self._again.daemon = True
        self._again.start()

    def stop(self) -> None:
        """Send nothing more."""
        if self._again is not None:
            self._again.cancel()
