"""Worker processes. Results are the same for any number of them, and no worker outlives this process."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, SpawnContext
from pickle import PicklingError
from typing import Any, TypeVar

from steelyard.errors import UserError

_Task = TypeVar("_Task")
_Found = TypeVar("_Found")

_COLLECT_EVERY = 16  # tasks of a worker between two looks for cycles, of which a run leaves up to hundreds of megabytes
_TRIES = 3  # of a task whose workers are ended from outside
_PR_SET_PDEATHSIG = 1  # of Linux's prctl
_ENDED_WITH_PARENT = 1  # exit code


class _Ended(UserError):
    """A worker was ended from outside."""


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
    number = min(workers, len(tasks))
    with _started(function, [tasks[i::number] for i in range(number)]) as ends:
        for i in range(len(tasks)):
            yield _received(ends[i % number])


def as_completed(
    function: Callable[[_Task], _Found], tasks: Sequence[_Task], workers: int
) -> Iterator[tuple[int, _Found]]:
    """The function applied to each task, as (place of the task, what was found), the first to end first.

    Each worker gets its next task when it has ended one. Closing the iterator early terminates the workers.
    """
    number = min(workers, len(tasks))
    with _started(function, [()] * number) as ends:
        todo = iter(enumerate(tasks))
        under_way: dict[Connection, int] = {}
        for end in ends:
            _hand_out(end, todo, under_way)
        while under_way:
            for ready in wait(list(under_way)):
                assert isinstance(ready, Connection)
                place, found = under_way.pop(ready), _received(ready)
                _hand_out(ready, todo, under_way)
                yield place, found


class KeptWorkers:
    """Processes that are kept for many rounds of tasks. One that is ended from outside is replaced."""

    def __init__(self, function: Callable[[Any], Any], ends: list[Connection], more: ExitStack) -> None:
        self._function, self._ends, self._more = function, ends, more

    def work(self, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """The function applied to each task, as (place of the task, what was found), the first to end first."""
        todo = iter(enumerate(tasks))
        under_way: dict[Connection, tuple[int, Any, int]] = {}
        for end in self._ends:
            self._next(end, todo, under_way)
        while under_way:
            for ready in wait(list(under_way)):
                assert isinstance(ready, Connection)
                place, task, tries = under_way.pop(ready)
                try:
                    found = _received(ready)
                except _Ended:
                    if tries >= _TRIES:
                        raise
                    self._replace(ready, place, task, tries, under_way)
                    continue
                self._next(ready, todo, under_way)
                yield place, found

    def _next(
        self, end: Connection, todo: Iterator[tuple[int, Any]], under_way: dict[Connection, tuple[int, Any, int]]
    ) -> None:
        for place, task in todo:
            under_way[end] = place, task, 1
            with suppress(BrokenPipeError):  # the worker has ended, which is told when its result is read
                end.send(task)
            return

    def _replace(
        self, end: Connection, place: int, task: Any, tries: int, under_way: dict[Connection, tuple[int, Any, int]]
    ) -> None:
        """Start another worker in the place of one that has ended, with its task."""
        (new,) = self._more.enter_context(_started(self._function, [()]))
        self._ends[self._ends.index(end)] = new
        under_way[new] = place, task, tries + 1
        new.send(task)


@contextmanager
def keep_working(function: Callable[[Any], Any], workers: int) -> Iterator[KeptWorkers]:
    """Worker processes until the end of the block."""
    with ExitStack() as more:
        ends = more.enter_context(_started(function, [()] * workers))
        yield KeptWorkers(function, list(ends), more)


def _hand_out(end: Connection, todo: Iterator[tuple[int, Any]], under_way: dict[Connection, int]) -> None:
    for place, task in todo:
        under_way[end] = place
        with suppress(BrokenPipeError):  # the worker has ended, which is told when its result is read
            end.send(task)
        return


@contextmanager
def _started(function: Callable[[Any], Any], tasks: Sequence[Sequence[Any]]) -> Iterator[list[Connection]]:
    """KeptWorkers, each with tasks to begin with, as connections for further tasks and for what is found."""
    # A forked process shares what has been computed. Forking is not safe on other systems.
    context: ForkContext | SpawnContext = get_context("fork") if sys.platform == "linux" else get_context("spawn")
    with _starting(1, len(tasks)):
        alive, lifeline = context.Pipe(duplex=False)  # nothing is ever sent: it ends when this process does
    started, ends = [], []
    try:
        for number, some in enumerate(tasks, 1):
            with _starting(number, len(tasks)):
                ours, theirs = context.Pipe()  # made just before its worker, so that no other one holds it open
                ends.append(ours)
                process = context.Process(
                    target=_work, args=(function, some, theirs, alive, lifeline, os.getpid()), daemon=True
                )
                process.start()
            started.append(process)
            theirs.close()
        yield ends
    finally:
        for process in started:
            process.kill()
            process.join()
        for end in (alive, lifeline, *ends):
            end.close()


@contextmanager
def _starting(number: int, workers: int) -> Iterator[None]:
    """Say what the system's refusal is about, and what can be done."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"worker process {number} of {workers} cannot be started: {error.strerror or error}; give fewer --workers "
            "(`simulate --workers 0` and `compare --workers 1` start none), or raise the limits of processes, open "
            "files and memory (`ulimit -a` shows them)"
        ) from None


def _work(
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    end: Connection,
    alive: Connection,
    lifeline: Connection,
    parent: int,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles signals, and ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    lifeline.close()
    _end_with(parent, alive)
    with suppress(EOFError, OSError):  # the parent process has ended
        for task in tasks:
            _answer(end, function, task)
        gc.freeze()  # what was there before is not looked through
        for done in count(1):
            _answer(end, function, end.recv())
            if not done % _COLLECT_EVERY:
                gc.collect()


def _end_with(parent: int, alive: Connection) -> None:
    """End this process when its parent does, however that ends.

    The system sees to it on Linux, whatever this process is doing. On others a thread waits for the end of a pipe,
    which Linux can do without.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it had ended before
            os._exit(_ENDED_WITH_PARENT)
    try:
        threading.Thread(target=_wait_for_end, args=(alive,), daemon=True).start()
    except RuntimeError:  # the system has no thread left
        if sys.platform != "linux":
            raise


def _wait_for_end(alive: Connection) -> None:
    with suppress(EOFError, OSError):
        alive.recv_bytes()
    os._exit(_ENDED_WITH_PARENT)


def _answer(end: Connection, function: Callable[[Any], Any], task: Any) -> None:
    """Send what the function finds, or its error."""
    try:
        try:
            found = function(task)
        except UserError as error:
            end.send((None, error))
        except Exception as error:
            error.add_note(f"In a worker process:\n{traceback.format_exc()}")
            end.send((None, error))
        else:
            end.send((found, None))
    except (AttributeError, TypeError, PicklingError) as error:
        end.send((None, RuntimeError(f"a worker process cannot send its result: {error}")))


def _received(end: Connection) -> Any:
    try:
        found, error = end.recv()
    except (EOFError, ConnectionResetError):
        told = "a worker process was ended from outside; is there enough memory? fewer --workers need less"
        raise _Ended(told) from None
    if error is not None:
        raise error
    return found
