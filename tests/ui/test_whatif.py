"""What-if: sliders change the fleet and nothing else, points are fair and say when they are not steady."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from steelyard import scenario_from_dict, set_up, simulate
from steelyard.errors import UserError
from steelyard.scenario import Scenario
from steelyard.ui.knobs import Knobs, ranges, reshaped
from steelyard.ui.points import FEWEST, PointTask, PointWorker
from steelyard.ui.whatif import curves_at_work
from support.page import CHAT

APART = {"pools": [{"role": "prefill", "gpu": "h100", "replicas": 1}, {"role": "decode", "gpu": "h100", "replicas": 3}]}


def scenario(**changes: Any) -> Scenario:
    work = {"arrivals": {"kind": "poisson", "rate": 20}, "requests": 300, "prompt": 500, "output": 60}
    return scenario_from_dict(
        {"model": "llama-3.1-8b", "fleet": {"gpu": "h100", "replicas": 4}, "workload": work, **changes}
    )


def task(folder: Path, text: str = CHAT, **knobs: Any) -> PointTask:
    own = {"rate": 20.0, "replicas": 4, "prefill": 0, "tp": 1, "seats": 256}
    return PointTask(0, 0, folder, "chat.yaml", text, Knobs(**{**own, **knobs}))


def test_settings_of_a_fleet_are_read_and_leave_it_as_it_is() -> None:
    assert Knobs.of(scenario()) == Knobs(20.0, 4, 0, 1, 256)
    assert Knobs.of(scenario(fleet=APART)) == Knobs(20.0, 4, 1, 1, 256)
    for each in (scenario(), scenario(fleet=APART), scenario(engine={"max_num_seqs": 64})):
        assert reshaped(each, Knobs.of(each)) == each


def test_sliders_that_a_fleet_does_not_have_are_left_out() -> None:
    mixed = {"pools": [{"name": "a", "gpu": "h100"}, {"name": "b", "gpu": "a100"}]}
    found = Knobs.of(scenario(fleet=mixed))
    assert (found.replicas, found.prefill, found.tp, found.seats) == (None, None, None, 256)
    assert "replicas" not in ranges(scenario(fleet=mixed))
    assert Knobs.read({"replicas": 9}, scenario(fleet=mixed)).replicas is None


def test_the_fleet_follows_the_sliders() -> None:
    found = reshaped(scenario(), Knobs(20.0, 8, 3, 2, 64))
    assert [(each.role, each.replicas, each.tp) for each in found.fleet.pools] == [("prefill", 3, 2), ("decode", 5, 2)]
    assert found.engine.max_num_seqs == 64
    back = reshaped(scenario(fleet=APART), Knobs(20.0, 4, 0, 1, 256))
    assert [(each.role, each.replicas) for each in back.fleet.pools] == [("serve", 4)]


def test_pools_of_different_gpus_cannot_be_put_together() -> None:
    apart = {"pools": [{**APART["pools"][0], "gpu": "a100"}, APART["pools"][1]]}
    assert ranges(scenario(fleet=apart))["together"] is False
    with pytest.raises(UserError, match="cannot be done by one kind of engine"):
        reshaped(scenario(fleet=apart), Knobs(20.0, 4, 0, 1, 256))


@pytest.mark.parametrize(
    "given", [{"rate": -1}, {"rate": "fast"}, {"replicas": 1.5}, {"replicas": 10**9}, {"tp": True}, {"prefill": 4}]
)
def test_settings_from_outside_are_checked(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(given))):
        Knobs.read(given, scenario())


def test_a_point_is_what_a_simulation_of_its_settings_says(tmp_path: Path) -> None:
    found = PointWorker([0])(task(tmp_path, replicas=3))
    assert found is not None
    written = CHAT.replace("replicas: 4", "replicas: 3").replace("requests: 300", f"requests: {FEWEST}")
    (tmp_path / "x.yaml").write_text(written)
    from steelyard import load_scenario

    steady = simulate(load_scenario(tmp_path / "x.yaml")).summary.steady
    assert steady is not None and found["steady"]
    assert (found["ttft"], found["tpot"]) == (steady.ttft.p95, steady.tpot.p95)
    assert found["tokens"] == steady.throughput.output_tokens_per_s and found["gpus"] == 3


def test_an_overloaded_point_says_so_and_tells_what_the_fleet_finishes(tmp_path: Path) -> None:
    worker = PointWorker([0])
    heavy = CHAT.replace("output: 60", "output: 400")
    over = worker(PointTask(0, 0, tmp_path, "chat.yaml", heavy, Knobs(200.0, 1, 0, 1, 16), requests=4000))
    assert over is not None and over["overloaded"] and not over["steady"] and "overloaded" in over["reason"]
    assert over["tokens"] < 200 * 400 / 2
    assert task(tmp_path).longer(over) is None, "a longer run would say the same"


def test_a_point_that_has_not_settled_claims_no_throughput_and_gets_a_longer_run(tmp_path: Path) -> None:
    long = CHAT.replace("output: 60", "output: 3000")
    first = PointTask.first(0, 0, tmp_path, "chat.yaml", long, Knobs(20.0, 4, 0, 1, 256), 20.0)
    point = PointWorker([0])(first)
    assert point is not None and not point["steady"] and not point["overloaded"]
    assert point["tokens"] is None and point["usdPerMillion"] is None and point["reason"]
    again = first.longer(point)
    assert again is not None and again.requests > first.requests


def test_settings_that_cannot_work_are_told_by_the_point(tmp_path: Path) -> None:
    found = PointWorker([0])(task(tmp_path, tp=7))
    assert found is not None and "fleet.tp" in found["errors"][0]


def test_what_is_no_longer_wanted_is_given_up(tmp_path: Path) -> None:
    assert PointWorker([1])(task(tmp_path)) is None


def test_all_settings_get_the_same_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from steelyard.ui import points

    drawn: list[Any] = []

    def spy(fleet: Any, workload: Any, **more: Any) -> Any:
        drawn.append(workload)
        return simulate(fleet, workload, **more)

    monkeypatch.setattr(points, "simulate", spy)
    worker = PointWorker([0])
    for replicas in (2, 4):
        worker(task(tmp_path, replicas=replicas))
    worker(task(tmp_path, prefill=1))
    assert drawn[0] is drawn[1] is drawn[2]


def test_workers_answer_the_newest_request_of_a_tab(tmp_path: Path) -> None:
    async def main() -> tuple[list[Any], list[Any]]:
        with curves_at_work(1) as curves:

            def tasks(slot: int, turn: int) -> list[PointTask]:
                own = Knobs(20.0, 4, 0, 1, 256)
                return [PointTask(slot, turn, tmp_path, "chat.yaml", CHAT, own) for _ in range(3)]

            old = tasks(*curves.newest("tab"))
            new = tasks(*curves.newest("tab"))
            other = tasks(*curves.newest("another tab"))

            async def got(some: list[PointTask]) -> list[Any]:
                return [each async for each in curves.points(some)]

            first, second, third = await asyncio.gather(got(old), got(new), got(other))
            assert len(third) == 3, "one tab does not take the turn of another"
            return first, second

    old, new = asyncio.run(main())
    assert old == [] and len(new) == 3


def test_fleet_of_sliders_can_be_set_up() -> None:
    assert set_up(reshaped(scenario(), Knobs(20.0, 2, 1, 1, 128))).gpus == 2
