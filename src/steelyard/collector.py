"""The garbage collector, kept out of the way of work that leaves no cycles behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_USUAL, _SELDOM = 10, 60  # collections of what is young before a full one: Python's own, and one in about a minute


@contextmanager
def collector_off() -> Iterator[None]:
    """No collection inside: runs and imports make many objects and no cycles, and looking for some takes long.

    What is left afterwards counts as old, so that it is not looked through right away as if it were new.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
            gc.enable()


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
