"""Workloads: columns of requests, drawn from distributions or read from traces."""

from steelyard.workload.build import build_workload
from steelyard.workload.columns import Workload, merge
from steelyard.workload.traces import read_trace

__all__ = ["Workload", "build_workload", "merge", "read_trace"]
