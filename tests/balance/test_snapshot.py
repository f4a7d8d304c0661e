"""A snapshot and the rest of the log are as good as the whole log."""

from __future__ import annotations

import pickle
from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.admission import Late
from steelyard.balance.settings import TailSettings
from steelyard.balance.snapshot import restore, snapshot
from steelyard.balance.tail import Divided, OverSampling, PartialRollout, Reconfiguring, Repacking, TailBatching
from steelyard.errors import UserError
from support.cluster import WIDE, Cluster, settings
from support.engine_worlds import settled

TAILS = (
    *(None, OverSampling(1.5), TailBatching(1.4, 1.5), PartialRollout(500), Divided(400), Repacking(few=0.5)),
    *(Reconfiguring(few=0.7, wide=WIDE), Reconfiguring(wide=WIDE)),
)
ROUTERS = (
    *("round-robin", "least-outstanding", "sticky", "prefix-aware", "power-of-two", "length-predicted"),
    *("least-attained", "c-mlfq", "heddle", "cost-aware"),
)


@settled(60)
@given(
    st.sampled_from(TAILS),
    st.sampled_from(ROUTERS),
    st.sampled_from(get_args(Late)),
    st.sampled_from([None, 5]),
    st.integers(0, 2**32),
    st.floats(0, 1),
)
def test_a_snapshot_at_any_cut_decides_the_rest_the_same(
    tail: TailSettings | None, router: str, late: Late, at_once: int | None, seed: int, where: float
) -> None:
    made = settings(tail, router, staleness=2, synchronous=False, lead=1, late=late, concurrency=at_once)
    cluster = Cluster(made.core(), Random(seed))
    cluster.begin()
    for _ in range(200):
        if not cluster.happen():
            break
    core, cut = made.core(), int(where * len(cluster.log))
    for envelope, _ in cluster.log[:cut]:
        core.decide(envelope)
    core = restore(snapshot(core))
    for envelope, commands in cluster.log[cut:]:
        assert core.decide(envelope) == commands


def test_a_snapshot_of_another_schema_is_refused() -> None:
    with pytest.raises(UserError, match="schema 1; replay its log"):
        restore(b"steelyard core 0\n")


class Evil:
    """What a stranger may put into a file."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("1 / 0",)


def test_a_snapshot_runs_no_code_of_a_stranger() -> None:
    mark = snapshot(settings().core()).split(b"\n")[0] + b"\n"
    with pytest.raises(UserError, match=r"no builtins\.eval"):
        restore(mark + pickle.dumps(Evil()))
