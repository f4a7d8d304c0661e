"""What each example shows: its sentence and the panels of its figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from studies.panels import (
    Drawing,
    against,
    arrivals,
    cdf,
    cdf_by_kind,
    first_tokens,
    links,
    queues,
    ranks,
    replicas,
    sides,
    tiers,
    tokens,
)

_RATE = "workload.arrivals.rate"
_PER_SECOND = "requests per second"


@dataclass(frozen=True)
class Shown:
    """One example on the page."""

    title: str
    sentence: str
    panels: Sequence[Drawing]


_DRAFTS: dict[str, Sequence[str]] = {"three drafts": (), "none": ("engine.speculative=null",)}

GALLERY: dict[str, Shown] = {
    "quickstart": Shown(
        "Co-located, dense",
        "Four engines side by side answer chat requests that share system prompts.",
        (tokens, queues, against(_RATE, (20, 40, 60, 80), _PER_SECOND, ("ttft", "p95"))),
    ),
    "azure-like-mix": Shown(
        "Two kinds of traffic",
        "Chat and code completion on the same engines, while the rate swings.",
        (arrivals, queues, cdf_by_kind("e2e")),
    ),
    "chat-sessions": Shown(
        "Conversations and where they are sent",
        "A turn whose history is cached is nearly free, if the router sends it back to where that lies.",
        (cdf("ttft", {"sticky": (), "round-robin": ("fleet.router=round-robin",)}), queues, tokens),
    ),
    "closed-loop": Shown(
        "A load test with users that wait",
        "Each user asks again after an answer, so throughput levels off as users are added.",
        (
            against("workload.arrivals.users", (32, 64, 128, 256, 512), "users", ("throughput", "output_tokens_per_s")),
            against("workload.arrivals.users", (32, 64, 128, 256, 512), "users", ("tpot", "p95")),
            against("workload.arrivals.users", (32, 64, 128, 256, 512), "users", ("ttft", "p95")),
        ),
    ),
    "rollout-burst": Shown(
        "One batch of RL rollouts",
        "All requests come at once, and a few long answers decide when the batch is done.",
        (queues, tokens),
    ),
    "moe-ep": Shown(
        "Co-located, experts in parallel",
        "Eight data-parallel ranks step together, so that all wait for the fullest one.",
        (ranks, tokens, against(_RATE, (10, 20, 30, 40), _PER_SECOND, ("tpot", "p95"))),
    ),
    "pipeline": Shown(
        "Pipeline stages",
        "A model that one node cannot hold, one stage to each of two nodes, with two batches under way.",
        (tokens, queues, against(_RATE, (1, 2, 4, 6), _PER_SECOND, ("tpot", "p95"))),
    ),
    "pdd": Shown(
        "Prefill and decode apart",
        "Prompts are computed by two engines and answered by two others; keys and values go over links they share.",
        (queues, sides, links),
    ),
    "pdd-heterogeneous": Shown(
        "Prefill and decode on different GPUs",
        "Prompts on H800, answers on H20, which read memory as fast and cost half as much.",
        (queues, sides, links),
    ),
    "afd": Shown(
        "Attention and FFN apart",
        "Micro-batches go back and forth between eight attention GPUs and eight expert GPUs in every layer.",
        (sides, queues, against(_RATE, (2, 5, 10, 15), _PER_SECOND, ("tpot", "p95"))),
    ),
    "pdd-afd": Shown(
        "Prefill apart, and attention apart from FFN",
        "Prompts on their own engines; answers from a unit with attention on H20 and experts on H800.",
        (sides, queues, against(_RATE, (5, 10, 20, 30), _PER_SECOND, ("tpot", "p95"))),
    ),
    "speculative": Shown(
        "Speculative decoding",
        "An EAGLE head drafts three tokens a step, and the model verifies them all at once.",
        (cdf("tpot", _DRAFTS), against(_RATE, (4, 15, 30), _PER_SECOND, ("tpot", "mean"), _DRAFTS)),
    ),
    "tiered-kv": Shown(
        "Caches below the GPU's memory",
        "Histories that GPUs give up are found again in host memory, on disk or in a common store.",
        (tiers, cdf("ttft", {"with tiers": (), "without": ("engine.tiers=[]",)})),
    ),
    "reasoning-agents": Shown(
        "Reasoning agents",
        "Hidden rounds and tool calls before an answer; a scheduler that prefers answers shortens what users wait for.",
        (cdf("attft", {"first come": (), "phase-aware": ("engine.scheduler=phase-aware",)}), queues),
    ),
    "autoscale": Shown(
        "A pool that follows its load",
        "Replicas are added as requests pile up, and serve 40 seconds later.",
        (arrivals, replicas, first_tokens),
    ),
    "faults": Shown(
        "A crash and a slow GPU",
        "One engine is lost for 45 seconds and another runs at two thirds of its speed; the others take over.",
        (tokens, replicas, first_tokens),
    ),
}

PLAIN = Shown("", "", (tokens, queues, first_tokens))  # what an example shows that nobody has written of here
