"""How early sending begins follows how late it was."""

from __future__ import annotations

from steelyard.emulate.lead import Lead


def lateness(lead: Lead, takes: float, window: float = 1.0) -> float:
    """How late the middle of a batch of tokens is that begins early, but not earlier than a window, and takes long."""
    used = min(lead.seconds, window)
    late = takes / 2 - used
    lead.observe(used + late)
    return late


def test_on_the_mean_tokens_are_on_time_after_a_while() -> None:
    lead = Lead()
    for takes in (4e-3, 1e-3, 10e-3):
        last = [lateness(lead, takes) for _ in range(200)][-1]
        assert abs(last) < 1e-5


def test_what_cannot_be_made_up_for_is_not_made_up_for_later() -> None:
    lead = Lead()
    for _ in range(500):
        assert lateness(lead, 30e-3, window=1.5e-3) > 0.01
    early = [lateness(lead, 0.2e-3, window=1.5e-3) for _ in range(200)]
    assert min(early) > -1.5e-3 and abs(early[-1]) < 1e-5


def test_one_hiccup_changes_little() -> None:
    lead = Lead()
    lead.observe(3.0)
    assert lead.seconds < 2e-3
