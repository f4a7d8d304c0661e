"""The console summary and the wording of numbers."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from steelyard.report import print_summary
from steelyard.sim.summary import Throughput
from steelyard.words import byte_size, count, dollars, percent, seconds, significant
from support.report_samples import make_result, no_steps
from support.report_text import printed

SLO = {
    "ttft_p95": {"limit": 0.5, "value": 0.081, "met": True},
    "tpot_p95": {"limit": 0.004, "value": 0.0071, "met": False},
}


def test_a_run_on_eighty_columns() -> None:
    result = make_result(120, 4, name="[red]quick[/red]", slo=SLO)
    result.notes.append("a long note " * 20)
    text = printed(result)
    assert max(map(len, text.splitlines())) <= 80
    for part in (
        "[red]quick[/red]",
        "Misses 1 of 2 limits.",
        "✓ TTFT p95  81.0 ms, limit 500 ms",
        "✗ TPOT p95  7.10 ms, limit 4.00 ms",
        "62.0 % measured",
        "attention below 128 tokens is extrapolated",
        "rejected",
        seconds(result.summary.e2e.p99),
    ):
        assert part in text, part
    assert "…" not in text, "nothing is cut off"


def test_large_numbers_still_fit() -> None:
    result = make_result(60, 2)
    summary = result.summary
    result.summary = replace(
        summary,
        throughput=Throughput(*[12_345_678.9] * 6),
        requests=100_000_000,
        outcomes=replace(summary.outcomes, finished=99_999_999),
        kv=replace(summary.kv, blocks_per_replica=10_000_000),
    )
    text = printed(result)
    assert max(map(len, text.splitlines())) <= 80
    assert " 100,000,000 " in text
    assert "…" not in text


def test_nothing_served() -> None:
    text = printed(no_steps(make_result(30)))
    assert "rejected" in text
    assert "no limits set" in text
    assert "nan" not in text


def test_notes_are_counted_when_there_are_many() -> None:
    result = make_result(20)
    result.notes = [f"note {i}" for i in range(30)]
    assert "and 22 more in summary.json" in printed(result)


def test_a_terminal_that_only_knows_ascii() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    print_summary(make_result(30, name="größe", slo=SLO), Console(file=file, width=80))
    file.flush()
    text = raw.getvalue().decode("ascii")
    assert "+ TTFT p95" in text
    assert "gr??e" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0.0, "0 s"),
        (2.5e-7, "0.250 µs"),
        (0.0000123, "12.3 µs"),
        (0.03125, "31.2 ms"),
        (0.9996, "1.00 s"),
        (59.94, "59.9 s"),
        (119.99, "2.00 min"),
        (7199.99, "2.00 h"),
        (36000.0, "10.0 h"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_other_wordings() -> None:
    assert significant(999.6) == "1,000"
    assert significant(0.0996) == "0.0996"
    assert significant(73728.4) == "73,728"
    assert significant(-12.345) == "-12.3"
    assert percent(0.99999) == ">99.9 %"
    assert percent(1e-5) == "<0.1 %"
    assert (percent(0.0), percent(1.0), percent(0.125)) == ("0 %", "100 %", "12.5 %")
    assert (dollars(0.1234), dollars(1234.5)) == ("$0.123", "$1,234.50")
    assert (byte_size(16_060_522_496), byte_size(512)) == ("15.0 GiB", "512 B")
    assert count(1234567.0) == "1,234,567"


@given(st.floats(1e-9, 1e12))
def test_three_digits_are_three_digits(value: float) -> None:
    shown = float(significant(value).replace(",", ""))
    assert shown == pytest.approx(value, rel=5.01e-3 if value < 1000 else 1e-3)
    assert "e" not in significant(value)
