"""Load from pages of metrics."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from steelyard.live.engines.api import EngineLoad
from steelyard.live.engines.metrics import load_of


def test_ranks_add_up_and_shares_are_averaged() -> None:
    page = "\n".join(
        f'vllm:{name}{{engine="{rank}",model_name="a b"}} {value + rank}'
        for rank in (0, 1)
        for name, value in (
            ("num_requests_running", 3),
            ("num_requests_waiting", 10),
            ("kv_cache_usage_perc", 0.0),
            ("generation_tokens_total", 1e9),
        )
    )
    assert load_of(page) == EngineLoad(7, 21, 0.5, 2e9 + 1)


def test_names_that_only_begin_alike_do_not_count() -> None:
    page = (
        "# HELP vllm:num_requests_running Requests.\n"
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 5\n'
        "vllm:num_requests_running_total 6\n"
        " vllm:num_requests_running 7\n"
        'sglang:realtime_tokens_total{mode="prefill_compute"} 8\n'
    )
    assert load_of(page) == EngineLoad()


def test_values_that_are_no_counts_are_not_told() -> None:
    for value in ("NaN", "+Inf", "-1", "x", ""):
        assert load_of(f"vllm:num_requests_running {value}") == EngineLoad()


@given(st.text())
def test_any_text_is_read(page: str) -> None:
    load_of(page)


@given(st.floats(0, 1e15), st.sampled_from(["vllm:num_requests_running", "sglang:num_running_reqs"]), st.text())
def test_a_value_is_found_among_anything(value: float, name: str, other: str) -> None:
    found = load_of(f'{name}{{model_name="m"}} {value!r}\n{other}')
    assert found.running is not None and (math.isclose(found.running, value) or name in other)
