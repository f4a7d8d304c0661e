"""The clock: order of events, ends of runs, and events that are taken back."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from steelyard.fleet.environment import Environment

Event = tuple[float, int, int]


class Recorder:
    """Notes what happens; an event may bring others."""

    def __init__(self, brings: dict[Event, list[Event]] | None = None) -> None:
        self.brings = brings or {}
        self.seen: list[Event] = []
        self.horizons: list[float] = []
        self.clock: Environment[Event] = Environment([self.note] * 3)

    def note(self, event: Event) -> None:
        assert self.clock.now == event[0]
        self.seen.append(event)
        for each in self.brings.pop(event, ()):
            self.clock.schedule(each)
        self.horizons.append(self.clock.horizon)


def test_ties_go_by_priority_then_by_number() -> None:
    recorder = Recorder()
    for event in [(1.0, 2, 0), (1.0, 0, 7), (0.5, 2, 9), (1.0, 0, 3)]:
        recorder.clock.schedule(event)
    recorder.clock.run()
    assert recorder.seen == [(0.5, 2, 9), (1.0, 0, 3), (1.0, 0, 7), (1.0, 2, 0)]


def test_a_run_ends_after_its_last_second_and_can_be_continued() -> None:
    recorder = Recorder()
    for at in (1.0, 2.0, 2.5):
        recorder.clock.schedule((at, 0, 0))
    recorder.clock.run(until=2.0)
    assert (recorder.seen, recorder.clock.now, recorder.clock.peek()) == ([(1.0, 0, 0), (2.0, 0, 0)], 2.0, 2.5)
    assert recorder.horizons == [2.0, 2.0]  # of the next event; of the end of the run
    recorder.clock.step()
    assert recorder.seen[-1] == (2.5, 0, 0) and recorder.clock.peek() == inf


def test_stop_ends_a_run() -> None:
    stopping: Environment[Event] = Environment([lambda event: stopping.stop()])
    stopping.schedule((0.0, 0, 0))
    stopping.schedule((0.0, 0, 1))
    stopping.run()
    assert stopping.agenda == [(0.0, 0, 1)]
    stopping.run()
    assert not stopping.agenda


def test_a_run_inside_a_run_leaves_the_outer_one_its_end() -> None:
    ends: list[float] = []

    def first(event: Event) -> None:
        clock.run(until=1.5)
        ends.append(clock.horizon)

    clock: Environment[Event] = Environment([first, lambda event: None])
    for event in [(1.0, 0, 0), (1.2, 1, 0), (9.0, 1, 0)]:
        clock.schedule(event)
    clock.run(until=4.0)
    assert ends == [4.0] and clock.agenda == [(9.0, 1, 0)]


EVENTS = st.tuples(st.integers(0, 5).map(float), st.integers(0, 2), st.integers(0, 40))


@given(st.sets(EVENTS), st.sets(EVENTS), st.integers(0, 5))
def test_order_does_not_depend_on_when_events_were_scheduled(now: set[Event], later: set[Event], gone: int) -> None:
    """Events that another brings count from then on; those taken back do not happen."""
    first = (-1.0, 0, 0)
    recorder = Recorder({first: sorted(later - now, reverse=True)})
    for event in [first, *now]:
        recorder.clock.schedule(event)
    recorder.clock.step()
    recorder.clock.drop(lambda event: event[2] == gone)
    recorder.clock.run()
    assert recorder.seen == [first, *sorted(event for event in now | later if event[2] != gone)]
