"""What an engine records while it runs: little per event, expanded to whole tables afterwards."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.engine.batch import Batch
from steelyard.engine.request import FINISHED, LOST, Request

if TYPE_CHECKING:
    from steelyard.engine.policies.policy import Policy

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_FIELDS = (
    "step",
    "n_decode",
    "kv_decode",
    "prefill_tokens",
    "prefill_requests",
    "prefill_pairs",
    "running",
    "waiting",
    "free_blocks",
    "free_after",
    "preempted",
)
FIELDS = len(_FIELDS)
DECODES, PREFILLS = _FIELDS.index("n_decode"), _FIELDS.index("prefill_requests")

_ENDED = ("index", "status", "first", "last", "hit", "preemptions", "scheduled")
ENDED = len(_ENDED)

_RECENT, _MOST = 512, 4096  # step ends that a brief log keeps at least, and before it drops some


class EngineLog:
    """Append-only records of one engine.

    ``ends`` has every step's end. ``rows`` has one record per *stretch*: its first step and what that step ran. In the
    further steps of a stretch every decode has one token more, and nothing else differs.
    """

    def __init__(self) -> None:
        self.stride = 1  # steps from one token of a request to the next, if it is never delayed
        self.ends = array("d")
        self.dropped = 0  # steps before the first of these
        self.rows = array("q")  # _FIELDS, flat
        self.restarts: list[tuple[int, float]] = []  # (step, start) where the engine had been idle
        self.requests = array("d")  # _ENDED, flat
        self.breaks: list[tuple[int, int]] = []
        self.given_up: dict[int, tuple[float, str]] = {}  # when and why a request was aborted or rejected

    def __reduce__(self) -> tuple[Callable[..., EngineLog], tuple[object, ...]]:
        """Pickled as its records, without the tables that were expanded from them."""
        records = (self.stride, self.ends, self.rows, self.restarts, self.requests, self.breaks, self.given_up)
        return _read_back, (type(self), *records)

    def end_of(self, step: int) -> float:
        """The second at which a step ended."""
        return self.ends[step - self.dropped]

    def restart(self, step: int, start: float) -> None:
        """Record a step that runs after the engine was idle."""
        self.restarts.append((step, start))

    def step(self, number: int, batch: Batch, scheduler: Policy) -> None:
        """Record a step and its batch, right after scheduling."""
        tokens = pairs = 0
        for chunk, before in batch.chunks:
            tokens += chunk
            pairs += chunk * before + chunk * (chunk + 1) // 2
        free = scheduler.kv.free
        self.rows.extend(
            (
                number,
                batch.decodes,
                batch.kv,
                tokens,
                len(batch.chunks),
                pairs,
                len(scheduler.running),
                len(scheduler.waiting),
                free,
                free,
                len(batch.preempted),
            )
        )

    def stretch(self, first: int, decodes: int, kv: int, free: int, scheduler: Policy) -> None:
        """Record decode steps from ``first`` on, which left ``free`` blocks. Cached tokens and blocks of the later
        steps follow in a straight line."""
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        self.rows.extend((first, decodes, kv, 0, 0, 0, running, waiting, free, scheduler.kv.free, 0))

    def done(self, r: Request) -> None:
        """Record the figures of a request that has ended or was aborted."""
        first, last, breaks = (r.first, r.last, r.breaks) if not r.seen else _news(r)
        self.requests.extend((r.index, r.status, first, last, r.hit, r.preemptions, r.scheduled))
        if breaks and (r.status == FINISHED or r.status == LOST):
            self.breaks.extend(breaks)

    def take_back(self, r: Request) -> None:
        """Remove the record of a request that has not finished after all."""
        breaks = r.breaks if not r.seen else _news(r)[2]
        row = len(self.requests) - len(_ENDED)
        while self.requests[row] != r.index:  # lost requests may have been recorded after it
            row -= len(_ENDED)
        del self.requests[row : row + len(_ENDED)]
        if breaks:
            del self.breaks[-len(breaks) :]

    def lose(self, indices: Collection[int]) -> None:
        """Mark these finished requests as lost, since only a part of each ran here."""
        table = np.frombuffer(self.requests).reshape(-1, len(_ENDED))
        rows = np.isin(table[:, 0], list(indices)) & (table[:, 1] == FINISHED)
        table[rows, 1] = LOST

    @cached_property
    def end(self) -> Floats:
        """End second of every step: a view of ``ends``, which must not grow any more."""
        return np.frombuffer(self.ends) if self.ends else np.empty(0)

    def stretches(self) -> dict[str, Ints]:
        """One row per stretch, with its number of steps."""
        return dict(self._stretches)

    @cached_property
    def _stretches(self) -> dict[str, Ints]:
        """Columns that are views of ``rows``, which must not grow any more."""
        table = np.frombuffer(self.rows, dtype=np.int64).reshape(-1, len(_FIELDS))
        columns = {name: table[:, i] for i, name in enumerate(_FIELDS)}
        columns["steps"] = np.diff(columns["step"], append=len(self.ends))
        return columns

    @cached_property
    def ran(self) -> int:
        """Steps that ran anything; a pipeline also counts turns that ran nothing."""
        if not self.ends:
            return 0
        rows = self._stretches
        return int(rows["steps"][rows["n_decode"] + rows["prefill_requests"] > 0].sum())

    def start(self) -> Floats:
        """Start second of every step: the end of the previous one, unless the engine was idle."""
        start = np.zeros(len(self.ends))
        start[1:] = self.end[:-1]
        for step, second in self.restarts:
            start[step] = second
        return start

    @cached_property
    def ended(self) -> dict[str, Ints | Floats]:
        """One row per request that has ended: index, status, steps of first and last token, and so on."""
        table = np.array(self.requests).reshape(-1, len(_ENDED))
        columns: dict[str, Ints | Floats] = {name: table[:, i] for i, name in enumerate(_ENDED)}
        return {name: c if name == "scheduled" else c.astype(np.int64) for name, c in columns.items()}

    def steps(self) -> dict[str, Ints | Floats]:
        """One row per step. Free blocks are exact at the first step of a stretch and interpolated between."""
        rows = self.stretches()
        count = rows.pop("steps")
        stretch = np.repeat(np.arange(len(count)), count)
        into = np.arange(len(self.ends)) - rows["step"][stretch]
        steps: dict[str, Ints | Floats] = {"start": self.start(), "end": self.end}
        for name in _FIELDS:
            if name not in ("prefill_pairs", "free_after"):
                steps[name] = rows[name][stretch]
        steps["step"] = np.arange(len(self.ends))
        steps["kv_decode"] = steps["kv_decode"] + into * steps["n_decode"]
        fall = (rows["free_blocks"] - rows["free_after"])[stretch] * into
        steps["free_blocks"] = steps["free_blocks"] - fall // np.maximum(count[stretch] - 1, 1)
        if self.ran < len(self.ends):
            ran = steps["n_decode"] + steps["prefill_requests"] > 0
            steps = {name: column[ran] for name, column in steps.items()} | {"step": np.arange(self.ran)}
        return steps

    def gaps(self) -> tuple[Floats, Ints]:
        """Inter-token latencies of finished requests, as (seconds, how many), without a walk over tokens.

        Tokens delivered before a crash count; tokens that a later attempt repeats do not.

        A request that emits from step f to step l has the gaps of steps f+1..l, so the number of requests per step
        gap is a running sum. Where emission skipped steps (preemption), those gaps are replaced by the long one.
        In a pipeline of ``stride`` stages there is one such sum for each lane.
        """
        end = self.end
        ended = self.ended
        emitted = (ended["status"] == FINISHED) | (ended["status"] == LOST)
        stride = self.stride
        room = (len(end) // stride + 2) * stride
        change = np.bincount(ended["first"][emitted] + stride, minlength=room)
        change -= np.bincount(ended["last"][emitted] + stride, minlength=room)
        long = np.empty(0)
        if self.breaks:
            skipped = np.array(self.breaks, dtype=np.int64)
            change -= np.bincount(skipped[:, 0] + stride, minlength=room)
            change += np.bincount(skipped[:, 1] + stride, minlength=room)
            long = end[skipped[:, 1]] - end[skipped[:, 0]]
        count = np.cumsum(change.reshape(-1, stride), axis=0).reshape(-1)[: len(end)]
        at = np.flatnonzero(count)
        seconds = end[at] - end[at - stride]
        return np.concatenate([seconds, long]), np.concatenate([count[at], np.ones(len(long), dtype=np.int64)])


class BriefLog(EngineLog):
    """Busy times and the latest step ends, but no tables: for drivers that only look at each request when it ends."""

    def __init__(self) -> None:
        super().__init__()
        self._busy_from = array("d")
        self._busy_until = array("d")  # of all busy times but the last

    def restart(self, step: int, start: float) -> None:
        if self.ends:
            self._busy_until.append(self.ends[-1])
        self._busy_from.append(start)

    def busy(self) -> tuple[Floats, Floats]:
        """When the engine had something to run: from each restart to the last end before the next."""
        until = np.array(self._busy_until)
        return np.array(self._busy_from), np.append(until, self.ends[-1]) if self.ends else until

    def seen(self, requests: Iterable[Request]) -> None:
        """The driver has looked at these requests, which were all that had ended. Earlier steps are not needed."""
        if self.given_up:
            for r in requests:
                self.given_up.pop(r.index, None)
        if len(self.ends) > _MOST:
            self.dropped += len(self.ends) - _RECENT
            del self.ends[:-_RECENT]

    def step(self, number: int, batch: Batch, scheduler: Policy) -> None:
        pass

    def stretch(self, first: int, decodes: int, kv: int, free: int, scheduler: Policy) -> None:
        pass

    def done(self, r: Request) -> None:
        pass

    def take_back(self, r: Request) -> None:
        pass


def _read_back(
    kind: type[EngineLog],
    stride: int,
    ends: array[float],
    rows: array[int],
    restarts: list[tuple[int, float]],
    requests: array[float],
    breaks: list[tuple[int, int]],
    given_up: dict[int, tuple[float, str]],
) -> EngineLog:
    log = kind()
    log.stride, log.ends, log.rows, log.restarts = stride, ends, rows, restarts
    log.requests, log.breaks, log.given_up = requests, breaks, given_up
    return log


def _news(r: Request) -> tuple[int, int, list[tuple[int, int]]]:
    """First and last step, and breaks between, of the tokens that no earlier attempt delivered."""
    first = r.first_news()
    if first < 0:
        if r.status != FINISHED or r.keep:
            return -1, -1, []
        first = r.last  # other drafts may have been accepted than in the earlier attempt
    return first, r.last, [each for each in r.breaks or () if each[0] >= first]
