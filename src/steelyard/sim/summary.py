"""The figures of a run that people look at first. Keys and order of `summary.json` are those of the fields here.

Fields with a default have no key where they hold it; others are null where they are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from steelyard.sim.record import Record

Interval = tuple[float, float]


@dataclass(frozen=True)
class Latency(Record):
    """Mean and percentiles of something that happened ``count`` times; None where it never did."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None
    count: int

    @property
    def levels(self) -> dict[str, float | None]:
        """All of it by name, but the count."""
        names = ("mean", "p50", "p90", "p95", "p99", "max")
        return dict(zip(names, (self.mean, self.p50, self.p90, self.p95, self.p99, self.max), strict=True))


@dataclass(frozen=True)
class Outcomes(Record):
    """What became of the requests."""

    finished: int
    rejected: int
    aborted: int
    unfinished: int = 0  # in a run that was cut


@dataclass(frozen=True)
class Throughput(Record):
    """What finished requests amount to, by second."""

    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    output_tokens_per_s_per_gpu: float
    total_tokens_per_s_per_gpu: float


@dataclass(frozen=True)
class Goodput(Record):
    """Requests that met every limit on a single request; None where the scenario sets none."""

    requests_per_s: float | None
    share: float | None


@dataclass(frozen=True)
class LimitVerdict(Record):
    """A limit on a percentile in seconds, and what the run had instead.

    Requests that did not finish count as infinitely late; the value is None where the percentile is one of them.
    """

    limit: float
    value: float | None
    met: bool
    unserved: int = 0


@dataclass(frozen=True)
class Steady(Record):
    """Figures of the requests that ended in the window in which the fleet neither fills nor drains."""

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
    sampling: dict[str, Interval]  # where a longer run's would lie, with 90 % certainty, by figure


@dataclass(frozen=True)
class Unsteady(Record):
    """Why a run has no such window; and where the queue grows all the way, how fast requests came and went."""

    reason: str
    arrive_per_s: float | None = None
    finish_per_s: float | None = None


@dataclass(frozen=True)
class Bottleneck(Record):
    """What requests wait for, where they do, and what would help."""

    cause: str  # seats, tokens, blocks, gpu compute, gpu memory, communication, host or link
    pool: str  # at whose engines; empty for links
    waited: float  # share of the engines' time in which requests waited; of links, of the time in which they sent
    figure: str
    help: str


@dataclass(frozen=True)
class FoundInTier(Record):
    """Prompt tokens that one tier of memory held, and its traffic; the GPU's own has no traffic to count."""

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
    """Blocks of the KV cache, and the share of them that was held."""

    blocks_per_replica: int
    block_size: int
    mean_use: float
    peak_use: float


@dataclass(frozen=True)
class Provenance(Record):
    """Which shares of step time are of which kind of figure."""

    measured: float
    interpolated: float
    extrapolated: float
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
    stalled: float | None = None  # share of decode-only steps, waiting for the other side of an AFD unit
    pipeline_bubble: float | None = None  # share of time that stages idled while others worked
    model: str | None = None  # where there are several
    step_time: StepShares | None = None  # of engines whose batches run whole on their GPUs, one at a time
    acceptance_length: float | None = None  # tokens per request and step with drafts


@dataclass(frozen=True)
class ModelFigures(Record):
    """How one of several models was served."""

    requests: int
    finished: int
    ttft: Latency
    tpot: Latency
    e2e: Latency
    output_tokens_per_s: float


@dataclass(frozen=True)
class LinkUse(Record):
    """What the links of one kind carried, as bytes and as shares of what they could have."""

    bytes: float
    mean_use: float
    peak_use: float
    busy: float


@dataclass(frozen=True)
class ServingFigures(Record):
    """How many replicas of a pool served, as (second, replicas from then on)."""

    name: str
    replicas: tuple[tuple[float, int], ...]
    gpu_hours_up: float


@dataclass(frozen=True)
class DynamicsFigures(Record):
    """What crashes did, and how many replicas served when."""

    crashes: int
    retried_requests: int
    retries: int
    gpu_hours_up: float
    pools: tuple[ServingFigures, ...]


@dataclass(frozen=True)
class FirstUseFigures(Record):
    """Kernels that fresh engines compiled while serving, and how long their steps waited for that."""

    kernels: int
    seconds: float


@dataclass(frozen=True)
class Intervals(Record):
    """Where figures lie with the stated certainty, by dotted name such as ``ttft.p99``."""

    share: float
    bounds: Mapping[str, Interval]

    def to_dict(self) -> dict[str, Any]:
        """Bounds nested as the figures themselves are."""
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
    """All headline figures, of the whole run unless they are said to be steady.

    Where pools differ, those of engines are of the pools that answer.
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
    sources: dict[str, str]  # which answered, by operator
    pools: tuple[PoolFigures, ...]
    intervals: Intervals | None
    unsteady: Unsteady | None = None
    bottleneck: Bottleneck | None = None
    compiled_on_first_use: FirstUseFigures | None = None
    dynamics: DynamicsFigures | None = None
    models: dict[str, ModelFigures] = field(default_factory=dict)  # where there are several
    links: dict[str, LinkUse] = field(default_factory=dict)

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
