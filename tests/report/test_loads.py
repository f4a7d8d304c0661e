"""Loads of replicas and shares of workloads."""

from __future__ import annotations

import pytest

from steelyard.report.loads import replica_loads, unserved_reasons, workload_shares
from support.report_samples import make_result


def test_replica_loads_add_up() -> None:
    result = make_result(200, 7)
    loads = replica_loads(result)
    finished = result.requests["status"] == "finished"
    assert len(loads.requests) == 7
    assert loads.requests.sum() == (result.requests["replica"] >= 0).sum()
    assert loads.output_tokens.sum() == result.requests["output"][finished].sum()
    first = result.steps["replica"] == 0
    seconds = (result.steps["end"] - result.steps["start"])[first]
    assert loads.busy[0] == pytest.approx(seconds.sum() / result.summary.duration_s)


def test_workloads_of_a_mix_and_reasons() -> None:
    result = make_result(100, labels=("b", "a"), reject=0.3)
    shares, total = workload_shares(result.requests, 10)
    assert [share.label for share in shares] == ["b", "a"]
    assert total == 2
    assert sum(share.requests for share in shares) == 100
    lost = int((result.requests["status"] == "rejected").sum())
    assert unserved_reasons(result.requests) == [("rejected", "prompt too long", lost)]
    assert workload_shares(result.requests, 1)[1] == 2
