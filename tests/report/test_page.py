"""The page's text, without a browser: complete, self-contained, and safe with any name."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from steelyard.report.page import render_page
from steelyard.sim.summary import LimitVerdict
from support.report_samples import make_result, no_steps
from support.report_text import HOSTILE, charts_of, read, words

SLO = {
    "ttft_p95": {"limit": 0.5, "value": 0.081, "met": True},
    "tpot_p95": {"limit": 0.004, "value": 0.0071, "met": False},
}


def test_everything_is_said() -> None:
    result = make_result(120, 4, name="quickstart", slo=SLO, labels=("chat", "code"))
    text = words(render_page(result, ["mind the gap"]))
    for part in (
        "quickstart",
        "llama-3.1-8b on 4 × H100-SXM-80GB, 4 replicas",
        "Misses 1 of 2 limits.",
        "81.0 ms, limit 500 ms",
        "missed: 7.10 ms, limit 4.00 ms",
        "measured on this GPU 62.0 %",
        "mind the gap",
        "Requests per replica",
        "chat",
        "code",
        "prompt too long",
        "Memory per GPU",
        "15.0 GiB",
        "max_num_seqs: 256",
        "rate: 12.0",
    ):
        assert part in text, part


def test_it_asks_nothing_of_the_network() -> None:
    page = render_page(make_result(30), [])
    assert all(link.startswith(("#", "data:")) for link in read(page).links)
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "@import" not in page
    assert "url(" not in page


def test_names_cannot_break_out() -> None:
    result = make_result(30, name=HOSTILE, labels=(HOSTILE, "plain"))
    limit = LimitVerdict(limit=1.0, value=0.5, met=True)
    slo, sources = {f"ttft_{HOSTILE}": limit}, {HOSTILE: HOSTILE}
    result.summary = replace(result.summary, model=HOSTILE, slo=slo, sources=sources)
    result.requests["reason"][:] = HOSTILE
    page = render_page(result, [HOSTILE])
    outline = read(page)
    assert outline.scripts == len(charts_of(page)) + 1
    assert "<script>alert" not in page
    assert "".join(outline.text).count("alert(1)") >= 8
    assert charts_of(page)["ttft"]["limits"] == [{"name": f"limit {HOSTILE}", "at": 1.0, "axis": "x"}]


def test_nothing_served_is_said_plainly() -> None:
    text = words(render_page(no_steps(make_result(30)), []))
    assert "No request finished: of 30, 30 rejected." in text
    assert "longer than max_model_len 8192" in text
    assert "nan" not in text.lower()


def test_one_request_of_one_token() -> None:
    text = words(render_page(make_result(1, 1, reject=0, output=1), []))
    assert "Its first token came after" in text
    assert "Replicas" not in text
    assert "nan" not in text.lower()


@pytest.mark.parametrize("replicas", [1, 2, 128])
def test_the_replica_table_has_a_row_each(replicas: int) -> None:
    page = render_page(make_result(300, replicas, rate=100), [])
    assert page.count('<td class="load"') == (0 if replicas == 1 else 3 * replicas)


def test_any_size_stays_small_and_says_what_it_cut() -> None:
    result = make_result(400)
    result.requests["replica"] = np.arange(400) * 7
    result.summary = replace(result.summary, replicas=3000)
    result.requests["label"] = np.array([f"workload {i}" for i in range(400)])
    result.requests["reason"] = np.array([f"why {i}" for i in range(400)], dtype=object)
    result.requests["status"][:] = "aborted"
    page = render_page(result, [f"note {i}" for i in range(1000)])
    text = words(page)
    assert len(page.encode()) < 1_000_000
    assert "Of 3,000, the 128 with the most requests and the 128 with the fewest." in text
    assert "The first 50 of 400 workloads." in text
    assert "The first 20 of 400 reasons." in text
    assert "and 950 more in summary.json" in text
