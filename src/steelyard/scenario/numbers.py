"""Kinds of numbers in scenarios. Each has a range, which `steelyard schema` shows, and a reason for it.

Ranges are far beyond what fleets and models have. They keep times exact, sums finite, and runs within memory.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from steelyard.scenario.base import mistake


def _refuse_bool(value: Any) -> Any:
    """Refuse booleans, such as YAML's ``yes`` and ``on``: Python would count them as 1."""
    if isinstance(value, bool):
        raise mistake("must be a number")
    return value


_Number = BeforeValidator(_refuse_bool)

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
Whole = Annotated[int, Field(ge=0, le=MOST), _Number]
Integer = Annotated[int, Field(ge=-MOST, le=MOST), _Number]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1), _Number]  # within 64 bits
Requests = Annotated[int, Field(ge=1, le=MOST_REQUESTS), _Number]
Replicas = Annotated[int, Field(ge=1, le=MOST_REPLICAS), _Number]
Degree = Annotated[int, Field(ge=1, le=MOST_GPUS), _Number]  # of parallelism, and GPUs or nodes in a group
Place = Annotated[int, Field(ge=0, lt=MOST_REPLICAS), _Number]  # of a replica in its pool
Few = Annotated[int, Field(ge=1, le=1_000), _Number]  # of what costs time for each one: drafts, micro-batches
FewOrZero = Annotated[int, Field(ge=0, le=1_000), _Number]
StepTokens = Annotated[int, Field(ge=1, le=MOST_STEP_TOKENS), _Number]
Seats = Annotated[int, Field(ge=1, le=65_536), _Number]  # requests of a step
Blocks = Annotated[int, Field(ge=2, le=100_000_000), _Number]  # a terabyte has 30 million of the smallest usual ones
Groups = Annotated[int, Field(ge=1, le=1_000_000), _Number]  # of requests or samples, listed one by one
Tasks = Annotated[int, Field(ge=1, le=10_000_000), _Number]  # shuffled in memory
Steps = Annotated[int, Field(ge=1, le=100_000), _Number]  # of training
LawTokens = Annotated[int, Field(ge=1, le=10_000_000), _Number]  # of a power law, of which each length has an entry
Context = Annotated[int, Field(ge=2, le=MOST), _Number]
Turns = Annotated[int, Field(ge=1, le=10_000), _Number]  # of a trajectory, drawn one after the other

# Seconds
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS), _Number]
PositiveSeconds = Annotated[float, Field(gt=0, le=MOST_SECONDS), _Number]
Interval = Annotated[float, Field(ge=0.01, le=MOST_SECONDS), _Number]  # after which something is done again and again
Latency = Annotated[float, Field(ge=0, le=3600), _Number]  # of a link

# Other numbers
Share = Annotated[float, Field(ge=0, le=1), _Number]
PositiveShare = Annotated[float, Field(gt=0, le=1), _Number]
HalfShare = Annotated[float, Field(ge=0, le=0.5), _Number]
Percentile = Annotated[float, Field(gt=0, lt=100), _Number]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1), _Number]
Rate = Annotated[float, Field(ge=1e-6, le=1e9), _Number]  # per second: one in twelve days, or one a nanosecond
RateOrZero = Annotated[float, Field(ge=0, le=1e9), _Number]
Weight = Annotated[float, Field(gt=0, le=1e9), _Number]  # relative to others
WeightOrZero = Annotated[float, Field(ge=0, le=1e9), _Number]
Factor = Annotated[float, Field(ge=1e-6, le=1e6), _Number]
Slowdown = Annotated[float, Field(ge=1, le=1e6), _Number]
Remainder = Annotated[float, Field(ge=1e-6, le=1), _Number]  # of a bandwidth that is never quite 0
Surplus = Annotated[float, Field(ge=1, le=100), _Number]  # begun per one that is needed
MoreThanOne = Annotated[float, Field(gt=1, le=100), _Number]
Variation = Annotated[float, Field(ge=1e-3, le=100), _Number]  # beyond, ten thousand arrive at once, then none for long
Amount = Annotated[float, Field(ge=0, le=1e6), _Number]  # of work, or of dollars
PositiveAmount = Annotated[float, Field(ge=1e-6, le=1e6), _Number]
Scale = Annotated[float, Field(ge=1e-9, le=MOST), _Number]  # a typical length or time
Bound = Annotated[float, Field(ge=0, le=MOST), _Number]  # of lengths or times
LogDeviation = Annotated[float, Field(ge=0, le=10), _Number]  # e ** 10 is a factor of 22,026
Exponent = Annotated[float, Field(ge=0, le=40), _Number]  # of a power law; ten million to this power is still a double
Reward = Annotated[float, Field(ge=-1e9, le=1e9), _Number]
Samples = Annotated[float, Field(ge=1, le=1e15), _Number]
LEAST_BANDWIDTH, MOST_BANDWIDTH = 1e3, 1e16  # bytes per second; slower ones take years for a model's weights
MOST_BYTES = 1e18  # of a tier
Bytes = Annotated[float, Field(ge=0, le=MOST_BYTES), _Number]
BytesPerSecond = Annotated[float, Field(ge=LEAST_BANDWIDTH, le=MOST_BANDWIDTH), _Number]
