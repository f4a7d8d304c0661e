"""The garbage collector, kept out of the way of work that leaves few cycles behind."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

_USUAL, _SELDOM = 10, 60  # collections of what is young before a full one: Python's own, and one in about a minute
_SHARE = 0.05  # of the CPU time, that looking for cycles of ended runs may take; chosen
_took = 0.1  # CPU seconds of the last full collection; a guess before the first
_ended = 0.0  # CPU time at its end


@contextmanager
def collector_off() -> Iterator[None]:
    """No collection inside: runs and imports make many objects and few cycles, and looking for them takes long.

    What is left afterwards counts as old, so that it is not looked through right away as if it were new. Python alone
    would hardly look through it again, and a program that simulates again and again would grow: the engines of a run
    refer to each other. So full collections follow runs, as often as they take a small share of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
            _collect_if_due()
            gc.enable()


def _collect_if_due() -> None:
    global _took, _ended
    now = time.process_time()
    if now - _ended > _took / _SHARE:
        gc.collect()
        _ended = time.process_time()
        _took = _ended - now


@contextmanager
def collector_on_new() -> Iterator[None]:
    """Only what is made inside is looked through, and all of that seldom: for servers, once they are set up. A full
    collection takes up to a tenth of a second with a thousand requests under way, while all clients wait.

    Where servers of one process end one by one, the first end of this ends it for all.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _SELDOM)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(young, middle, _USUAL)
