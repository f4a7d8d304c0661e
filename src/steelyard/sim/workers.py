"""Worker processes. Results are the same, in the same order, for any number of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from typing import Any, TypeVar

_Task = TypeVar("_Task")
_Found = TypeVar("_Found")


def free_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def run_all(function: Callable[[_Task], _Found], tasks: Sequence[_Task], workers: int) -> Iterator[_Found]:
    """The function applied to each task, in order.

    Without workers, or with one task, everything runs in this process. Otherwise each worker gets its tasks before it
    starts, since they take about equally long, and never waits for this process. Closing the iterator early terminates
    the workers.
    """
    if workers < 1 or len(tasks) < 2 or current_process().daemon:
        yield from map(function, tasks)
        return
    # A forked process shares what has been computed. Forking is not safe on other systems.
    context: ForkContext | SpawnContext = get_context("fork") if sys.platform == "linux" else get_context("spawn")
    ends = [context.Pipe(duplex=False) for _ in range(min(workers, len(tasks)))]
    started = [
        context.Process(target=_work, args=(function, tasks[i :: len(ends)], sends), daemon=True)
        for i, (_, sends) in enumerate(ends)
    ]
    try:
        for process, (_, sends) in zip(started, ends, strict=True):
            process.start()
            sends.close()
        for i in range(len(tasks)):
            yield _received(ends[i % len(ends)][0])
    finally:
        for process in started:
            if process.pid is not None:
                process.terminate()
                process.join()


def _work(function: Callable[[Any], Any], tasks: Sequence[Any], sends: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles interrupts and terminates this one
    with suppress(BrokenPipeError):  # the parent process has ended
        for task in tasks:
            try:
                sends.send((function(task), None))
            except Exception as error:
                sends.send((None, error))


def _received(receives: Connection) -> Any:
    try:
        found, error = receives.recv()
    except EOFError:
        raise RuntimeError("a worker process ended before its work was done; is there enough memory?") from None
    if error is not None:
        raise error
    return found
