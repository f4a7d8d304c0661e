"""AIConfigurator's question: how fleets are chosen, simulated and shown."""

from __future__ import annotations

import pytest

from bench import aiconfigurator
from bench.aiconfigurator_page import Answer, Measured, page
from bench.sizing import Carried, Fleet, Question, at_concurrency, at_rate, best_of, candidates, most_on_p95
from steelyard.errors import UserError
from support.silicon_tables import needs_package

QUESTION = Question("llama-3.1-8b", "h200", gpus=2, prompt=512, output=32, ttft=0.3, tpot=0.02)
SMALL = Fleet(1, 2, 8192)


def test_all_gpus_are_used_by_every_candidate() -> None:
    fleets = list(candidates(aiconfigurator.QUESTION))
    assert {fleet.tp * fleet.replicas for fleet in fleets} == {8}
    assert len(fleets) == len(set(fleets)) == 12


def test_the_candidate_that_carries_most_is_chosen_and_told_what_to_beat() -> None:
    beaten = []

    def capacity(question: Question, fleet: Fleet, least: float) -> Carried | None:
        beaten.append(least)
        return Carried(float(fleet.tp), 0.1, 0.01) if fleet.tp != 8 else None

    fleet, carried = best_of(aiconfigurator.QUESTION, capacity)
    assert fleet.tp == 4 and carried.rate == 4.0
    assert beaten == sorted(beaten) and beaten[0] == 0.0 and beaten[-1] == 4.0


def test_limits_that_nothing_meets_are_said_to_be_so() -> None:
    with pytest.raises(UserError, match="no fleet of the question's GPUs meets its limits"):
        best_of(QUESTION, lambda question, fleet, least: None)


def test_more_users_or_requests_carry_more_and_take_longer() -> None:
    few, many = (at_concurrency(QUESTION, SMALL, users) for users in (2, 16))
    assert few.rate < many.rate and few.tpot < many.tpot
    slow, quick = (at_rate(QUESTION, SMALL, rate) for rate in (2.0, 30.0))
    assert slow.ttft < quick.ttft and slow.tpot < quick.tpot


def test_the_largest_rate_meets_the_limits_and_a_larger_one_does_not() -> None:
    found = most_on_p95(QUESTION, SMALL)
    assert found is not None and found.meets(QUESTION)
    assert not at_rate(QUESTION, SMALL, 1.1 * found.rate).meets(QUESTION)
    assert most_on_p95(QUESTION, SMALL, least=2 * found.rate) is None


def test_the_page_says_who_gives_what_away() -> None:
    theirs, ours = Fleet(2, 4, 6012), Fleet(4, 2, 8192)
    answers = [Answer("AIConfigurator", theirs, Carried(10.0, 0.4, 0.04), 11.0, 10.0, 64)]
    answers.append(Answer("Steelyard, p95", ours, Carried(8.0, 0.5, 0.04), 5.0, 5.0))
    found = Measured(
        answers=answers,
        release="0.12.0",
        tables="vllm 0.24.0",
        tokens_per_gpu=669.0,
        as_said=Carried(9.0, 0.3, 0.05),
        at_its_rate=Carried(10.0, 0.9, 0.04),
        means={"AIConfigurator": Carried(10.0, 0.4, 0.05), "Steelyard, p95": Carried(9.0, 0.4, 0.05)},
        p95={"AIConfigurator": Carried(6.0, 0.6, 0.02), "Steelyard, p95": Carried(8.0, 0.6, 0.02)},
    )
    text = page(aiconfigurator.QUESTION, found)
    assert "| AIConfigurator | 4 x TP2, 6,012 tokens a step | 10.0 | 0.0% | 6.0 | 25.0% |" in text
    assert "| Steelyard, p95 | 2 x TP4, 8,192 tokens a step | 9.0 | 10.0% | 8.0 | 0.0% |" in text
    assert "users see a p95 TTFT of 900 ms instead of 600 ms." in " ".join(text.split())


@needs_package
def test_its_answer_is_read_as_it_gives_it() -> None:
    pytest.importorskip("aiconfigurator", reason="aiconfigurator is not installed")
    found = aiconfigurator.ask_theirs()
    assert (found["kind"], found["tp"], found["users"]) == ("agg", 2, 64)
    assert found["rate"] == pytest.approx(10.7, abs=0.1)
    assert found["rate"] * 500 / 8 == pytest.approx(found["tokens_per_gpu"], rel=0.01)


def test_another_release_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(aiconfigurator, "version", lambda _: "0.1.0")
    assert aiconfigurator.main([]) == 2
    assert "needs aiconfigurator 0.12.0 (found: 0.1.0)" in capsys.readouterr().out
