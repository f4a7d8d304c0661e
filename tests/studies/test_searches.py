"""Studies that are searches: they read, can be taken up again, and their tables say what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from steelyard.hardware import find_gpu
from steelyard.search.outcome import LoadOutcome
from steelyard.search.search import FleetChoice
from studies import pareto, phases, roles
from studies.page import PAGE
from studies.searches import answered, asked, best_of, gpus_of, journal_of, usd_per_million

_FEW = ["search.seconds=1", "search.requests=60", "workload.requests=60", "workload.output=24", "workload.prompt=256"]
_ENGINE = "gpu: h800, tp: 8, engine: {max_num_batched_tokens: 2048}"
SMALL_PARETO = [
    *_FEW,
    "search.gpus=32",
    "search.levels={ttft_p95: [0.5, 3]}",
    "search.architectures=[co-located, pdd]",
    *(f"search.{role}={{{_ENGINE}}}" for role in ("serve", "prefill", "decode")),
]


@pytest.fixture(autouse=True)
def journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("studies.searches.JOURNALS", tmp_path)
    return tmp_path


@pytest.mark.parametrize("study", [pareto, roles, phases])
def test_a_study_has_its_search_and_its_section(study: Any) -> None:
    assert asked(study.SEARCH, []).search.chosen()
    assert f"<!-- {study.__name__.removeprefix('studies.')} -->" in PAGE.read_text(encoding="utf-8")


def test_a_study_with_changes_prints_its_table_and_repeats_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pareto, "write_section", None)  # a changed study must not write the page
    before = PAGE.read_bytes()
    pareto.main(SMALL_PARETO)
    text = capsys.readouterr().out
    journal = journal_of(asked(pareto.SEARCH, SMALL_PARETO))
    rows = journal.read_text(encoding="utf-8")
    pareto.main(SMALL_PARETO)
    assert capsys.readouterr().out == text and journal.read_text(encoding="utf-8") == rows
    assert PAGE.read_bytes() == before
    found = answered(asked(pareto.SEARCH, SMALL_PARETO))
    for architecture in ("co-located", "pdd"):
        for level in found.levels:
            choice = best_of(found, architecture, level.name)
            assert choice is not None
            assert f"{choice.output_tokens_per_s / 1e3:.1f}k" in text and f"{level.name}: {choice.name}." in text
    assert len([line for line in text.splitlines() if line.startswith("| pdd | 3 |")]) == 1
    assert pareto.drawn(found).count("<rect") == 1 + 2 * len(found.levels)  # the card, and a bar for each


def test_a_study_writes_its_section_if_nothing_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "studies.md"
    page.write_text("before\n<!-- pareto -->\n\nold\n\n<!-- end of pareto -->\nafter\n", encoding="utf-8")
    found = answered(asked(pareto.SEARCH, SMALL_PARETO))
    monkeypatch.setattr("studies.page.PAGE", page)
    monkeypatch.setattr(pareto, "images", lambda: tmp_path)
    monkeypatch.setattr(pareto, "answered", lambda _: found)
    pareto.main([])
    text = page.read_text(encoding="utf-8")
    assert text == f"before\n<!-- pareto -->\n\n{pareto.table(found)}\n\n<!-- end of pareto -->\nafter\n"
    assert (tmp_path / "pareto.svg").read_text(encoding="utf-8") == pareto.drawn(found)


def test_estimates_are_of_the_same_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    pareto.estimates(SMALL_PARETO)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["co-located", "pdd"]
    assert all("TP8" in line and "k output tokens/s" in line for line in lines)


@pytest.mark.parametrize("assignment", roles.ASSIGNMENTS, ids=lambda each: each.name)
def test_an_assignment_is_a_search_of_these_gpus(assignment: roles.Assignment) -> None:
    scenario = asked(roles.SEARCH, assignment.changes())
    spec = scenario.search
    assert spec.chosen() == (assignment.architecture,) and spec.gpus == 1024
    for role in roles.PARTS[assignment.architecture]:
        choices = spec.of(role)
        assert choices is not None
        assert ", ".join(choices.gpu) == assignment.gpus.get(role, "h800")
    assert spec.prefill_share is not None
    assert {"1:1": {0.5}, "2:6": {0.25}}.get(assignment.split, set(spec.prefill_share)) == set(spec.prefill_share)


def choice(tokens: float, **gpus: int) -> FleetChoice:
    """A fleet that generates so many tokens a second, with so many GPUs of each type."""
    pools = [{"gpu": gpu, "replicas": number, "tp": 1, "pp": 1, "dp": 1} for gpu, number in gpus.items()]
    price = sum(number * find_gpu(gpu).price_per_hour for gpu, number in gpus.items())
    outcome = LoadOutcome({"ttft_p95": 1.0, "tpot_p95": 0.02}, False, 1.0, 100)
    size, rate = sum(gpus.values()), tokens / 100
    fleet: dict[str, Any] = {"pools": pools}
    return FleetChoice("pdd", "", "a fleet", fleet, None, rate, 1.0, size, price, 0.0, rate, rate, outcome)


def test_h20_are_worth_what_makes_a_token_cost_the_same() -> None:
    base = next(each for each in roles.ASSIGNMENTS if each.name == roles.baseline("pdd"))
    mixed = next(each for each in roles.ASSIGNMENTS if each.name == "pdd 1:1: H20 decode")
    found = {base.name: choice(1000.0, h800=100), mixed.name: choice(900.0, h800=50, h20=50)}
    assert roles.efficiency(found, base) == 1 and roles.worth(found, base) is None
    share = roles.worth(found, mixed)
    assert share == pytest.approx(0.8)  # 90 % of the tokens for 50 + 0.8 x 50 H800
    gain = roles.efficiency(found, mixed)
    whole = found[mixed.name].usd_per_hour / found[base.name].usd_per_hour
    assert gain == pytest.approx(0.9 / whole)
    assert usd_per_million(found[mixed.name]) == pytest.approx(found[mixed.name].usd_per_hour / 3.24)
    assert gpus_of(found[mixed.name]) == {"h800": 50, "h20": 50}
    text = roles.table(found)
    assert "| pdd 1:1: H20 decode | 1k | 50 | 50 |" in text and "0.80 of an H800" in text
    assert "| pdd 2:6: all H800 | no load meets the limits |" in text


def test_both_schedulers_have_a_rate_within_each_limit() -> None:
    few = ["search.requests=10", "search.seconds=1", "workload.requests=10", "search.levels={}"]
    found = answered(asked(phases.SEARCH, few))
    text = phases.carried(found)
    rates = {each.fleet["pools"][0]["engine"]["scheduler"]: each.rate for each in found.levels[0].choices}
    assert set(rates) == {"vllm", "phase-aware"}
    assert f"| {rates['vllm']:.3f} | {rates['phase-aware']:.3f} |" in text.splitlines()[-1]
