"""Engines made ready without a scenario: what they are, that they pickle, and that they are kept."""

from __future__ import annotations

import os
import pickle
import stat
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from steelyard import UserError, scenario_from_dict
from steelyard.model import Layout
from steelyard.sim import FleetSetup, Prepared, Result, draw_workload, fleet_of, prepare, set_up, simulate
from steelyard.sim.cache import Cache, cache_folder
from steelyard.sim.content import digest

WORK = {"arrivals": {"kind": "poisson", "rate": 20.0}, "requests": 40, "prompt": 300, "output": 20}
FLEETS: dict[str, dict[str, Any]] = {
    "plain": {"model": "llama-3.1-8b", "fleet": {"gpu": "h100", "replicas": 2}},
    "measured": {"model": "llama-3.1-8b", "fleet": {"gpu": "h200"}},
    "experts": {"model": "qwen3-30b-a3b", "fleet": {"gpu": "h200", "tp": 2}},
    "expert parallel": {
        "model": "qwen3-30b-a3b",
        "fleet": {"gpu": "h200", "tp": 1, "dp": 2, "expert_parallel": True, "router": "least-outstanding"},
    },
    "pipeline": {"model": "llama-3.1-8b", "fleet": {"gpu": "h100", "pp": 2}},
    "context parallel": {"model": "qwen3-30b-a3b", "fleet": {"gpu": "h200", "tp": 8, "dcp": 2}},
    "windows": {"model": "gemma-3-4b", "fleet": {"gpu": "h100"}},
    "drafts": {
        "model": "llama-3.1-8b",
        "fleet": {"gpu": "h200"},
        "engine": {"speculative": {"method": "eagle", "num_tokens": 2, "acceptance": {"probabilities": [0.8, 0.6]}}},
    },
    "unit": {
        "model": "qwen3-30b-a3b",
        "fleet": {
            "pools": [
                {"name": "attention", "role": "attention", "gpu": "h200", "replicas": 2},
                {"name": "ffn", "role": "ffn", "gpu": "h200", "replicas": 2},
            ],
        },
    },
    "apart": {
        "model": "llama-3.1-8b",
        "fleet": {
            "pools": [
                {"name": "prefill", "role": "prefill", "gpu": "h100"},
                {"name": "decode", "role": "decode", "gpu": "h200"},
            ]
        },
    },
    "roofline of a measured GPU": {
        "model": "llama-3.1-8b",
        "fleet": {"gpu": "h200"},
        "cost": {"source": "analytic"},
    },
}


def same(one: Result, other: Result) -> bool:
    """To the last bit, NaN where NaN is."""
    tables = [(one.requests, other.requests), (one.steps, other.steps)]
    equal = all(repr(a[name].tolist()) == repr(b[name].tolist()) for a, b in tables for name in a)
    return equal and one.summary == other.summary


@pytest.mark.parametrize("kind", FLEETS)
def test_every_kind_of_engine_pickles_and_runs_as_before(kind: str) -> None:
    fleet = set_up(scenario_from_dict({**FLEETS[kind], "workload": WORK}))
    written = pickle.dumps(fleet)  # before it has been used
    first = simulate(fleet)
    again: FleetSetup = pickle.loads(written)
    assert same(simulate(again), first)
    used: FleetSetup = pickle.loads(pickle.dumps(fleet))
    assert same(simulate(used), first) and same(simulate(fleet), first), "nothing of a run is left for the next"


def test_a_pickled_engine_of_a_measured_gpu_leaves_the_profile_behind() -> None:
    assert len(pickle.dumps(prepare("llama-3.1-8b", "h200"))) < 3e6


def test_it_is_the_engine_that_a_scenario_gets() -> None:
    engine = {"max_num_seqs": 64, "max_num_batched_tokens": 4096}
    prepared = prepare("llama-3.1-8b", "h100", 2, engine)
    scenario = scenario_from_dict(
        {"model": "llama-3.1-8b", "fleet": {"gpu": "h100", "tp": 2}, "engine": engine, "workload": WORK}
    )
    assert set_up(scenario).pools[0].prepared is prepared
    assert prepared.layout == Layout(tp=2) and "llama-3.1-8b" in repr(prepared)
    alone, whole = simulate(prepared, WORK), simulate(scenario)
    assert repr(alone.requests["finish"].tolist()) == repr(whole.requests["finish"].tolist())
    assert alone.summary.throughput == whole.summary.throughput


def test_a_workload_drawn_once_serves_many_runs() -> None:
    fleet = fleet_of(prepare("llama-3.1-8b", "h100"), WORK, replicas=2, slo={"ttft_p95": 1.0}, seed=3)
    drawn = draw_workload(fleet)
    assert same(simulate(fleet, drawn), simulate(fleet)) and same(simulate(fleet, drawn), simulate(fleet, drawn))
    other = draw_workload(fleet, seed=4)
    assert simulate(fleet, other).summary != simulate(fleet, drawn).summary
    faster = simulate(fleet, {**WORK, "arrivals": {"kind": "poisson", "rate": 40.0}})
    assert faster.summary.duration_s < simulate(fleet).summary.duration_s


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "llama-9", "gpu": "h100"}, "llama-9"),
        ({"model": "llama-3.1-8b", "gpu": "h1000"}, "h1000"),
        ({"model": "llama-3.1-8b", "gpu": "h100", "layout": 3}, "3"),
        ({"model": "llama-3.1-8b", "gpu": "h100", "engine": {"max_num_seq": 1}}, "engine: max_num_seq: unknown key"),
        ({"model": "llama-3.1-8b", "gpu": "h100", "cost": {"profile": "nowhere"}}, "cost.profile: nowhere"),
        ({"model": "llama-3.1-70b", "gpu": "h100"}, "memory"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare(**given)


def test_a_prepared_engine_needs_to_be_told_what_is_asked() -> None:
    prepared = prepare("llama-3.1-8b", "h100")
    with pytest.raises(UserError, match="needs a workload"):
        simulate(prepared)
    with pytest.raises(UserError, match="for scenarios"):
        simulate(prepared, WORK, factors={"gemm": 2.0})


# -- the cache --------------------------------------------------------------------------------------------------------


def test_contents_tell_things_apart() -> None:
    assert digest(1, (2, "a")) == digest(1, [2, "a"]) != digest(1, (2, "b"))
    assert digest("ab", "c") != digest("a", "bc") and digest(1) != digest(1.0) and digest(1) != digest("1")
    one, other = (prepare("llama-3.1-8b", "h100", 1, {"max_num_seqs": n}) for n in (8, 9))
    assert one.contents != other.contents
    assert prepare("llama-3.1-8b", "h100", 1, {"max_num_seqs": 8}) is one
    assert prepare("llama-3.1-8b", "h100", 1, {"max_num_seqs": 8}, factors={"gemm": 1.1}) is not one


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def never() -> int:
    raise AssertionError("it was made again")


def test_what_one_process_made_another_finds(folder: Path) -> None:
    assert Cache[int]("numbers", 0.0).get("seven", lambda: 7) == 7
    other = Cache[int]("numbers", 0.0)
    assert other.get("seven", never) == 7 and other.get("seven", never) == 7
    assert stat.S_IMODE((folder / "numbers").stat().st_mode) == 0o700
    assert [file.name for file in (folder / "numbers").iterdir()] == ["seven.pickle"]


def _large(_: int) -> int:
    """The sum of an entry that takes a while to write."""
    return sum(Cache[list[int]]("lists", 0.0).get("large", lambda: list(range(300_000))))


def test_several_processes_make_the_same_entry(folder: Path) -> None:
    with ProcessPoolExecutor(2) as pool:
        sums = list(pool.map(_large, range(6)))
    assert set(sums) == {sum(range(300_000))}
    assert [file.name for file in (folder / "lists").iterdir()] == ["large.pickle"]


def test_the_oldest_entries_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.sim.cache._ON_DISK", 2)
    for k in range(4):
        Cache[int]("numbers", 0.0).get(f"n{k}", lambda k=k: k)  # type: ignore[misc]
        os.utime(folder / "numbers" / f"n{k}.pickle", (k, k))
    assert sorted(file.name for file in (folder / "numbers").iterdir()) == ["n2.pickle", "n3.pickle"]


def test_what_is_soon_made_gets_no_file(folder: Path) -> None:
    assert Cache[int]("numbers", 10.0).get("seven", lambda: 7) == 7
    assert not folder.exists()


@pytest.mark.parametrize("written", [b"", b"no pickle", pickle.dumps(("eight", 8)), pickle.dumps(7)[:-2]])
def test_an_entry_that_is_cut_or_of_something_else_is_made_anew(folder: Path, written: bytes) -> None:
    Cache[int]("numbers", 0.0).get("seven", lambda: 7)
    (folder / "numbers" / "seven.pickle").write_bytes(written)
    assert Cache[int]("numbers", 0.0).get("seven", lambda: 77) == 77
    assert Cache[int]("numbers", 0.0).get("seven", never) == 77


def test_a_folder_that_others_can_write_to_is_left_alone(folder: Path) -> None:
    Cache[int]("numbers", 0.0).get("seven", lambda: 7)
    os.chmod(folder / "numbers", 0o777)
    assert Cache[int]("numbers", 0.0).get("seven", lambda: 77) == 77


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "file"))
    assert Cache[int]("numbers", 0.0).get("seven", lambda: 7) == 7


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEELYARD_CACHE", "")
    assert cache_folder() is None
    monkeypatch.delenv("STEELYARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/steelyard")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == Path("/home/somebody/.cache/steelyard")


def test_engines_come_back_from_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.sim.prepared.KNOWN", Cache[Prepared]("engines", 0.0))
    made = prepare("llama-3.1-8b", "h200")
    monkeypatch.setattr("steelyard.sim.prepared.KNOWN", Cache[Prepared]("engines", 0.0))
    monkeypatch.setattr("steelyard.sim.prepared.compile_cost", None)
    found = prepare("llama-3.1-8b", "h200")
    assert found is not made and same(simulate(found, WORK), simulate(made, WORK))
