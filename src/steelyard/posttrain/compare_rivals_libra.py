"""Profiles of Libra: as published, with its cost corrected, and without each of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from steelyard.posttrain.compare_profiles import Code, Profile, Setting, given, paper, tried

_CODE = Code("NetX-lab/Libra", "c51bf84d31fdfdbced066b2fb5751816d9e43065")
_CHANGES = "Draining before a change: what runs on engines that stop goes on elsewhere at once."
_PUBLISHED: Mapping[str, Setting] = MappingProxyType(
    {
        "mode": given("asynchronous", paper("2606.03077", "staleness admission")),
        "router": given("c-mlfq", paper("2606.03077", "C-MLFQ")),
        "queue_cap": tried(
            (64, 3),
            paper("2606.03077", "turns on a replica in its released configurations; 3 in its 48-GPU run with R2E"),
        ),
        "estimator": given("trie", paper("2606.03077", "C-MLFQ: tries of causal signals")),
        "planner": given("libra-published", paper("2606.03077", "global resource planner; costs as released")),
        "pool": tried(
            ("thresholds", "none"), paper("2606.03077", "elastic hybrid pool: 1.15, 0.90, pressure 0.8; it can be off")
        ),
        "switch": tried(
            ("difference", "blue-green"),
            f"{_CODE.at('config.py')}: `diff`; its script for 48 GPUs: `blue_green`; three others can be set",
        ),
        "tail": given("none", paper("2606.03077", "no tail policy")),
        "streaming": given(False, paper("2606.03077", "steps train on batches")),
        "weighed": given(False, paper("2606.03077", "released code sums hybrid gradients without weights")),
        "late": given("train", paper("2606.03077", "admission by staleness and concurrency, of starts alone")),
        "concurrency": given(None, paper("2606.03077", "admission formula; its limit is a setting")),
    }
)
_CORRECTED: Mapping[str, Setting] = MappingProxyType(
    {
        **_PUBLISHED,
        "planner": given("libra", "the published one with the time of a decode step divided by its degree once"),
    }
)

LIBRA = (
    Profile(
        "Libra",
        "As published: planner of both stages, hybrid pool, C-MLFQ and tries.",
        _PUBLISHED,
        left_out=_CHANGES,
        claim="Its authors: up to 3.0 times (v1) and 4.2 times (v3) its baselines on 48 A800.",
    ),
    Profile(
        "Libra, cost corrected",
        "The same; its planner divides the time of a decode step by the tensor-parallel degree once, not twice.",
        _CORRECTED,
        left_out=_CHANGES,
        claim="The plan no longer prefers TP8 everywhere.",
    ),
    Profile(
        "Libra, no planner",
        "Its ablation: C-MLFQ and its pool by thresholds, on a fixed split.",
        {
            **_PUBLISHED,
            "planner": given("static-best", "a fixed split is left to the user, so the best in hindsight"),
            "switch": given("difference", "nothing changes layouts"),
            "pool": given("thresholds", paper("2606.03077", "elastic hybrid pool: 1.15, 0.90, pressure 0.8")),
        },
        claim="The pool lends engines to training where that is the slower stage.",
    ),
    Profile(
        "Libra, no planner, no pool",
        "Its ablation: C-MLFQ alone, on the best fixed split in hindsight.",
        {
            **_PUBLISHED,
            "planner": given("static-best", "a fixed split is left to the user, so the best in hindsight"),
            "switch": given("difference", "nothing changes layouts"),
            "pool": given("none", "its ablation"),
        },
        claim="C-MLFQ sends long trajectories to fast engines.",
    ),
    Profile(
        "Libra, no C-MLFQ",
        "Its ablation: the corrected planner, and each turn to the least busy engine.",
        {
            **_CORRECTED,
            "router": given("least-outstanding", paper("2606.03077", "least connections without queues")),
            "queue_cap": given(64, "no queues"),
        },
        left_out=_CHANGES,
        claim="The planner moves GPUs to the slower stage.",
    ),
)
