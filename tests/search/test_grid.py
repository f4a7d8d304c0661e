"""The grid of a sweep: how axes are written, and what is refused."""

from __future__ import annotations

import pytest

from steelyard.errors import UserError
from steelyard.search.grid import MOST_POINTS, parse_axes, parse_axis, points_of


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("fleet.tp=1,2,4", [1, 2, 4]),
        ("fleet.tp = 1 , 2", [1, 2]),
        ("fleet.gpu=h100,h200", ["h100", "h200"]),
        ("engine.enable_prefix_caching=true,false", [True, False]),
        ("workload.arrivals.rate=5:50:10", [5, 10, 15, 20, 25, 30, 35, 40, 45, 50]),
        ("workload.arrivals.rate=50:5:2", [50, 5]),
        ("engine.max_num_seqs=16:1024:7:log", [16, 32, 64, 128, 256, 512, 1024]),
        ("slo.ttft_p95=0.1:0.3:3", [0.1, 0.2, 0.3]),
        ("workload.arrivals.rate=1:2:3", [1, 1.5, 2]),
        ("a=1e-06:1e-04:3:log", [1e-6, 1e-5, 1e-4]),
        ("workload.prompt={kind: uniform, min: 1, max: 9},200", [{"kind": "uniform", "min": 1, "max": 9}, 200]),
        ("accept=[1, 2],[3]", [[1, 2], [3]]),
        ("name='a,b',c", ["a,b", "c"]),
        ("name='a[',c", ["a[", "c"]),
    ],
)
def test_values(text: str, values: list[object]) -> None:
    axis = parse_axis(text)
    assert list(axis.values) == values
    assert [type(each) for each in axis.values] == [type(each) for each in values]


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ([], "--over: missing"),
        (["fleet.tp"], "must read KEY.PATH=VALUE"),
        (["=1,2"], "must read KEY.PATH=VALUE"),
        (["fleet.tp="], "must read KEY.PATH=VALUE"),
        (["fleet..tp=1,2"], "--over fleet..tp=1: must read"),
        (["fleet.tp=1,,2"], "a value is missing"),
        (["fleet.tp=1,2,1"], "1 is given twice"),
        (["fleet.tp=1,2", "fleet.tp=4"], "--over fleet.tp: given twice"),
        (["fleet.tp=1:8:1"], "a count of 2 to 100,000"),
        (["fleet.tp=1:1:3"], "two different numbers"),
        (["fleet.tp=1.2.3:8:2"], "must read"),
        (["fleet.tp=1:1e999:3"], "two different numbers"),
        (["fleet.tp=1:8:99999999999999999999999"], "a count of 2 to 100,000"),
        (["fleet.tp=0:8:3:log"], "need numbers above 0"),
        (["fleet.tp={"], "--over fleet.tp={"),
        (["a=1:400:400", "b=1:400:400"], "400 x 400 = 160,000 points; at most 100,000"),
    ],
)
def test_refusals(texts: list[str], told: str) -> None:
    with pytest.raises(UserError, match=f"^{told.replace('.', '[.]').replace('{', '[{]')}" if told[0] == "-" else told):
        parse_axes(texts)


def test_a_long_list_is_refused_before_it_is_read() -> None:
    with pytest.raises(UserError, match="values; at most"):
        parse_axis("a=" + ",".join(["1"] * (MOST_POINTS + 1)))


def test_the_last_axis_changes_fastest() -> None:
    points = points_of(parse_axes(["a=1,2", "b=x,y"]))
    assert [tuple(each.value for each in point) for point in points] == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]
