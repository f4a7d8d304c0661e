"""Kinds of numbers in scenarios. Each has a range and a unit, which `steelyard schema` shows, and a reason for it.

Ranges are far beyond what fleets and models have. They keep times exact, sums finite, and runs within memory.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic.config import JsonDict

from steelyard.scenario.base import mistake


def _refuse_bool(value: Any) -> Any:
    """Refuse booleans, such as YAML's ``yes`` and ``on``: Python would count them as 1."""
    if isinstance(value, bool):
        raise mistake("must be a number")
    return value


_Number = BeforeValidator(_refuse_bool)


def unit(name: str) -> JsonDict:
    """The unit of a number, for its ``json_schema_extra``. A field's own goes before that of its kind."""
    return {"unit": name}


def _in(name: str, **bounds: float) -> Any:
    """A number in a unit, within bounds."""
    return Field(json_schema_extra=unit(name), **bounds)  # type: ignore[call-overload]


MOST = 1_000_000_000  # tokens of a length; sums of ten million of them are well within 64 bits
MOST_SECONDS = 1e9  # 30 years, at the end of which doubles still tell 0.1 microseconds apart
# Measured: an idle replica takes 12 kB and 40 microseconds of each run, of which intervals need twenty.
MOST_REPLICAS = 16_384
MOST_REQUESTS = 10_000_000  # in 32 GB of memory; measured: 2.4 kB each
MOST_GPUS = 65_536  # of a group; no time or memory depends on them
MOST_ROUNDS = 20_000_000  # rows of requests with hidden rounds; they take less than other requests
MOST_IN_A_STAGE = 10_000  # rounds or branches of a request's plan, as turns of a trajectory
MOST_TRAJECTORIES = 1_000_000  # in progress at once; measured: 8 kB each
MOST_ROLLED_OUT = 20_000_000  # trajectories of a run: some hours, at 0.5 ms each
MOST_TURNS = 100_000_000  # of the trajectories of a step, each up to its budget, at 40 bytes each
MOST_STEP_TOKENS = 262_144  # of an engine's step, for which operators are timed beforehand: 300 MB

# Whole numbers
Count = Annotated[int, Field(ge=1, le=MOST), _Number]
Tokens = Annotated[int, _in("tokens", ge=1, le=MOST), _Number]
Whole = Annotated[int, Field(ge=0, le=MOST), _Number]
Integer = Annotated[int, Field(ge=-MOST, le=MOST), _Number]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1), _Number]  # within 64 bits
Requests = Annotated[int, _in("requests", ge=1, le=MOST_REQUESTS), _Number]
Replicas = Annotated[int, _in("replicas", ge=1, le=MOST_REPLICAS), _Number]
Degree = Annotated[int, _in("GPUs", ge=1, le=MOST_GPUS), _Number]  # of parallelism, and GPUs or nodes in a group
Stages = Annotated[int, _in("stages", ge=1, le=MOST_GPUS), _Number]  # of a pipeline
Ranks = Annotated[int, _in("ranks", ge=1, le=MOST_GPUS), _Number]  # data-parallel
Place = Annotated[int, _in("index", ge=0, lt=MOST_REPLICAS), _Number]  # of a replica in its pool
Few = Annotated[int, Field(ge=1, le=1_000), _Number]  # of what costs time for each one: drafts, micro-batches
FewOrZero = Annotated[int, Field(ge=0, le=1_000), _Number]
StepTokens = Annotated[int, _in("tokens", ge=1, le=MOST_STEP_TOKENS), _Number]
Seats = Annotated[int, _in("requests", ge=1, le=65_536), _Number]  # requests of a step
Blocks = Annotated[int, _in("blocks", ge=2, le=100_000_000), _Number]  # a terabyte has 30 million small ones
MemoryBytes = Annotated[int, _in("bytes", ge=1_000_000, le=10**13), _Number]  # of one GPU
Groups = Annotated[int, Field(ge=1, le=1_000_000), _Number]  # of requests or samples, listed one by one
Tasks = Annotated[int, _in("tasks", ge=1, le=10_000_000), _Number]  # shuffled in memory
Steps = Annotated[int, _in("training steps", ge=1, le=100_000), _Number]  # of training
LawTokens = Annotated[int, _in("tokens", ge=1, le=10_000_000), _Number]  # of a power law, with an entry each
Context = Annotated[int, _in("tokens", ge=2, le=MOST), _Number]
Turns = Annotated[int, _in("turns", ge=1, le=10_000), _Number]  # of a trajectory, drawn one after the other

# Seconds
Seconds = Annotated[float, _in("s", ge=0, le=MOST_SECONDS), _Number]
PositiveSeconds = Annotated[float, _in("s", gt=0, le=MOST_SECONDS), _Number]
Interval = Annotated[float, _in("s", ge=0.01, le=MOST_SECONDS), _Number]  # between two repetitions
Latency = Annotated[float, _in("s", ge=0, le=3600), _Number]  # of a link

# Other numbers
Share = Annotated[float, _in("share of 1", ge=0, le=1), _Number]
PositiveShare = Annotated[float, _in("share of 1", gt=0, le=1), _Number]
PartShare = Annotated[float, _in("share of 1", gt=0, lt=1), _Number]
HalfShare = Annotated[float, _in("share of 1", ge=0, le=0.5), _Number]
Percentile = Annotated[float, _in("percent", gt=0, lt=100), _Number]
ShareBelowOne = Annotated[float, _in("share of 1", ge=0, lt=1), _Number]
Rate = Annotated[float, _in("1/s", ge=1e-6, le=1e9), _Number]  # per second: one in twelve days, or one a nanosecond
RateOrZero = Annotated[float, _in("1/s", ge=0, le=1e9), _Number]
Weight = Annotated[float, _in("weight", gt=0, le=1e9), _Number]  # relative to others
WeightOrZero = Annotated[float, _in("weight", ge=0, le=1e9), _Number]
Factor = Annotated[float, _in("factor", ge=1e-6, le=1e6), _Number]
Slowdown = Annotated[float, _in("factor", ge=1, le=1e6), _Number]
Remainder = Annotated[float, _in("factor", ge=1e-6, le=1), _Number]  # of a bandwidth that is never quite 0
Surplus = Annotated[float, _in("factor", ge=1, le=100), _Number]  # begun per one that is needed
MoreThanOne = Annotated[float, _in("factor", gt=1, le=100), _Number]
Variation = Annotated[float, _in("ratio", ge=1e-3, le=100), _Number]  # beyond, all arrive at once, then none
Amount = Annotated[float, Field(ge=0, le=1e6), _Number]  # of work, or of dollars
PositiveAmount = Annotated[float, Field(ge=1e-6, le=1e6), _Number]
Scale = Annotated[float, Field(ge=1e-9, le=MOST), _Number]  # a typical length or time
Bound = Annotated[float, Field(ge=0, le=MOST), _Number]  # of lengths or times
LogDeviation = Annotated[float, _in("log scale", ge=0, le=10), _Number]  # e ** 10 is a factor of 22,026
Exponent = Annotated[float, _in("exponent", ge=0, le=40), _Number]  # ten million to this power is still a double
Reward = Annotated[float, _in("reward", ge=-1e9, le=1e9), _Number]
Samples = Annotated[float, _in("samples", ge=1, le=1e15), _Number]
LEAST_BANDWIDTH, MOST_BANDWIDTH = 1e3, 1e16  # bytes per second; slower ones take years for a model's weights
MOST_BYTES = 1e18  # of a tier
Bytes = Annotated[float, _in("bytes", ge=0, le=MOST_BYTES), _Number]
BytesPerSecond = Annotated[float, _in("bytes/s", ge=LEAST_BANDWIDTH, le=MOST_BANDWIDTH), _Number]
