"""The summary of a run. The fields here are the keys of `summary.json`, in the same order.

A field that holds its default is left out. Other fields are null if they are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from steelyard.sim.record import Record

Interval = tuple[float, float]
_ROUNDING = 1e-6  # by which sums of many durations may differ


@dataclass(frozen=True)
class Latency(Record):
    """Mean and percentiles of ``count`` values, in seconds; None if there are none."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None
    count: int

    @property
    def levels(self) -> dict[str, float | None]:
        """All fields by name, without the count."""
        names = ("mean", "p50", "p90", "p95", "p99", "max")
        return dict(zip(names, (self.mean, self.p50, self.p90, self.p95, self.p99, self.max), strict=True))


@dataclass(frozen=True)
class Outcomes(Record):
    """Number of requests by outcome."""

    finished: int
    rejected: int
    aborted: int
    unfinished: int = 0  # in a run that was cut


@dataclass(frozen=True)
class Throughput(Record):
    """Finished requests and their tokens, per second."""

    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    output_tokens_per_s_per_gpu: float
    total_tokens_per_s_per_gpu: float


@dataclass(frozen=True)
class Goodput(Record):
    """Requests that met every per-request limit; None if the scenario has none."""

    requests_per_s: float | None
    share: float | None


@dataclass(frozen=True)
class LimitVerdict(Record):
    """A limit on a percentile and the run's value, in seconds.

    Requests that did not finish count as infinitely late. The value is None if the percentile is infinite.
    """

    limit: float
    value: float | None
    met: bool
    unserved: int = 0


@dataclass(frozen=True)
class Steady(Record):
    """Figures of the requests that ended in the steady window."""

    start_s: float
    end_s: float
    seconds: float
    requests: int
    throughput: Throughput
    goodput: Goodput
    usd_per_million_tokens: float | None
    usd_per_million_output_tokens: float | None
    ttft: Latency
    tpot: Latency
    e2e: Latency
    sampling: dict[str, Interval]  # 90 % interval of a longer run, by figure


@dataclass(frozen=True)
class Unsteady(Record):
    """Why a run has no steady window; and if the queue keeps growing, the rates of arrivals and ends."""

    reason: str
    arrive_per_s: float | None = None
    finish_per_s: float | None = None


@dataclass(frozen=True)
class Bottleneck(Record):
    """What requests wait for, and what would help."""

    cause: str  # seats, tokens, blocks, gpu compute, gpu memory, communication, host or link
    pool: str  # pool whose engines they wait at; empty for links
    waited: float  # share of engines' time with waiting requests; for links, share of time busy
    figure: str
    help: str


@dataclass(frozen=True)
class FoundInTier(Record):
    """Prompt tokens found in one memory tier, and the tier's traffic. The GPU's own cache has no traffic."""

    hit_rate: float
    hit_tokens: int
    blocks: int | None = None
    blocks_stored: int | None = None
    blocks_turned_away: int | None = None
    bytes_read: float | None = None
    bytes_written: float | None = None
    read_use: float | None = None
    write_use: float | None = None


@dataclass(frozen=True)
class PrefixCache(Record):
    """Prompt tokens that did not have to be computed again."""

    hit_rate: float
    hit_tokens: int
    prompt_tokens: int
    by_tier: dict[str, FoundInTier] = field(default_factory=dict)


@dataclass(frozen=True)
class KvUse(Record):
    """KV-cache blocks, and the share of them in use."""

    blocks_per_replica: int
    block_size: int
    mean_use: float
    peak_use: float


@dataclass(frozen=True)
class Provenance(Record):
    """Shares of step time by kind of cost figure."""

    measured: float
    interpolated: float
    extrapolated: float
    transferred: float  # from the profile of a GPU with the same multiprocessors
    analytic: float


@dataclass(frozen=True)
class Cost(Record):
    """US dollars."""

    usd_per_gpu_hour: float
    usd: float
    usd_per_million_tokens: float | None
    usd_per_million_output_tokens: float | None


@dataclass(frozen=True)
class MemoryFigures(Record):
    """Where the bytes of a GPU go."""

    total_bytes: int
    usable_bytes: int
    weights_bytes: int
    activation_bytes: int
    runtime_bytes: int
    kv_bytes: int
    block_bytes: int
    num_gpu_blocks: int
    draft_bytes: int | None = None
    kv_groups: int | None = None
    state_blocks_per_request: int | None = None  # of recurrent layers
    block_tokens: int | None = None  # of attention, where not those of the settings


@dataclass(frozen=True)
class StepShares(Record):
    """Where the time of a pool's steps goes, as shares of it."""

    attention: float
    gemm: float
    experts: float
    communication: float
    elementwise: float
    host: float  # the GPU waits for the host, or for other ranks


@dataclass(frozen=True)
class PoolFigures(Record):
    """What a pool is and how busy it was."""

    name: str
    role: str
    gpu: str
    gpus: int
    replicas: int
    first_replica: int
    tp: int
    layout: str
    steps: int
    kv: KvUse
    mfu: float
    mbu: float
    busy: float
    provenance: Provenance
    stalled: float | None = None  # share of decode-only steps spent waiting for the other side of an AFD unit
    pipeline_bubble: float | None = None  # share of time that stages idled while others worked
    model: str | None = None  # in a fleet of several models
    step_time: StepShares | None = None  # not for pipelines and AFD units
    acceptance_length: float | None = None  # tokens per request and step with drafts


@dataclass(frozen=True)
class ModelFigures(Record):
    """Figures of one of several models."""

    requests: int
    finished: int
    ttft: Latency
    tpot: Latency
    e2e: Latency
    output_tokens_per_s: float


@dataclass(frozen=True)
class LinkUse(Record):
    """Traffic of one kind of link: bytes, and shares of its capacity."""

    bytes: float
    mean_use: float
    peak_use: float
    busy: float


@dataclass(frozen=True)
class ServingFigures(Record):
    """Replicas of a pool over time, as (second, replicas from then on): those that serve, and those that hold GPUs."""

    name: str
    replicas: tuple[tuple[float, int], ...]
    gpu_hours_up: float
    held: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True)
class DynamicsFigures(Record):
    """Crashes, retries, and replicas over time."""

    crashes: int
    retried_requests: int
    retries: int
    gpu_hours_up: float
    pools: tuple[ServingFigures, ...]


@dataclass(frozen=True)
class FirstUseFigures(Record):
    """Kernels that fresh engines compiled while serving, and the seconds that steps waited for it."""

    kernels: int
    seconds: float


@dataclass(frozen=True)
class Intervals(Record):
    """Intervals with a coverage of ``share``, by dotted name such as ``ttft.p99``."""

    share: float
    bounds: Mapping[str, Interval]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, bounds nested as the figures are."""
        found: dict[str, Any] = {"share": self.share}
        for name, interval in self.bounds.items():
            part, _, rest = name.partition(".")
            if rest:
                found.setdefault(part, {})[rest] = list(interval)
            else:
                found[part] = list(interval)
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """What ``to_dict`` wrote."""
        bounds: dict[str, Interval] = {}
        for part, value in data.items():
            if isinstance(value, Mapping):
                bounds |= {f"{part}.{rest}": (low, high) for rest, (low, high) in value.items()}
            elif part != "share":
                bounds[part] = (value[0], value[1])
        return cls(data["share"], bounds)


@dataclass(frozen=True)
class Summary(Record):
    """All headline figures. They are of the whole run, except ``steady``.

    If pools differ, figures of engines are those of the pools that answer.
    """

    name: str
    seed: int
    steelyard: str
    model: str
    gpu: str
    gpus: int
    replicas: int
    tp: int
    layout: str
    requests: int
    outcomes: Outcomes
    steps: int
    duration_s: float
    ttft: Latency
    attft: Latency
    tpot: Latency
    itl: Latency
    e2e: Latency
    queue: Latency
    throughput: Throughput
    goodput: Goodput
    slo: dict[str, LimitVerdict]  # by limit, such as ttft_p95
    steady: Steady | None
    preemptions: int
    prefix_cache: PrefixCache
    kv: KvUse
    mfu: float
    mbu: float
    busy: float
    provenance: Provenance
    gpu_hours: float
    cost: Cost
    memory: MemoryFigures
    sources: dict[str, str]  # by operator: the source of its times
    pools: tuple[PoolFigures, ...]
    intervals: Intervals | None
    unsteady: Unsteady | None = None
    bottleneck: Bottleneck | None = None
    compiled_on_first_use: FirstUseFigures | None = None
    dynamics: DynamicsFigures | None = None
    models: dict[str, ModelFigures] = field(default_factory=dict)  # in a fleet of several models
    links: dict[str, LinkUse] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Shares are shares, and what is in use on average is not more than at the peak.

        MFU and MBU are shares of a data sheet's peaks. A what-if run with faster kernels may exceed them.
        """
        parts: list[tuple[str, Summary | PoolFigures]] = [("the fleet", self)]
        parts += [(f"pool {pool.name}", pool) for pool in self.pools]
        for where, part in parts:
            shares = {"busy": part.busy, "kv.mean_use": part.kv.mean_use, "kv.peak_use": part.kv.peak_use}
            for name, share in shares.items():
                assert 0 <= share <= 1 + _ROUNDING, f"{where}: {name} of {share}"
            assert part.kv.mean_use <= part.kv.peak_use + _ROUNDING, f"{where}: KV blocks, mean above peak ({part.kv})"
        for name, link in self.links.items():
            assert 0 <= link.busy <= 1 + _ROUNDING, f"{name}: busy of {link.busy}"

    @property
    def latencies(self) -> dict[str, Latency]:
        """By metric."""
        return {
            "ttft": self.ttft,
            "attft": self.attft,
            "tpot": self.tpot,
            "itl": self.itl,
            "e2e": self.e2e,
            "queue": self.queue,
        }
