"""Profiles of systems whose rollouts go on while they train. All have the same bound on staleness here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from steelyard.posttrain.compare_profiles import Code, Profile, Setting, given, paper, thread, tried
from steelyard.posttrain.compare_rivals_synchronous import (
    EVEN_RANKS,
    SLIME,
    SLIME_TRAINING,
    VERL,
    VERL_COLOCATED,
)

AREAL = Code("inclusionAI/AReaL", "4aef98d8d818af55b43621aaadba047ae10f4e77")
SKYRL = Code("NovaSky-AI/SkyRL", "a9564572eb8e91076be43c1bd5e4615e3de17265")
ROLL = Code("alibaba/ROLL", "8eb27cc2dc34c4d1310b169d9b86d339004d811a")
MILES = Code("radixark/miles", "31f1ca961a94cb860cec3b2dea34ec332bfa8f76")

_ROLLOUTER = VERL.at("verl/experimental/fully_async_policy/fully_async_rollouter.py")
_CONTROLLER = VERL.at("docs/advance/dynamic_schedule.md")

_VERL_ASYNCHRONOUS: Mapping[str, Setting] = MappingProxyType(
    {
        **VERL_COLOCATED,
        "mode": given("asynchronous", VERL.at("verl/experimental/fully_async_policy/README.md")),
        "tail": given("none", _ROLLOUTER + ": partial rollouts go on after each weight sync, as in this mode here"),
        "late": given("train", _ROLLOUTER + ": it takes samples from its queue as they come"),
        "concurrency": given(None, _ROLLOUTER + ": limited by staleness, and 16 samples an engine that may be raised"),
    }
)

ASYNCHRONOUS = (
    Profile(
        "verl, one step off",
        "A batch is rolled out while training is on the last one.",
        {
            **VERL_COLOCATED,
            "mode": given("one-step-off", VERL.at("verl/experimental/one_step_off_policy/README.md")),
        },
        kinder=EVEN_RANKS + " Its next batch begins when the last has ended and weights are synced; here it begins "
        "with the sync, even if some of the last still run.",
        claim="23 to 40 % faster than taking turns.",
    ),
    Profile(
        "verl, fully asynchronous",
        "Rollouts run ahead within a bound on staleness; weights change under those that are running.",
        {
            **_VERL_ASYNCHRONOUS,
            "training.generates": tried((True, False), _CONTROLLER + ": DynamicResourceController, off by default"),
        },
        kinder=EVEN_RANKS + " Running turns keep their caches at a sync, where it computes them again.",
        claim="Training does not wait for the longest sample of a batch; 15 % more with its controller.",
    ),
    Profile(
        "BiDiRL",
        "verl's asynchronous way; rollout engines are lent to training by whole replicas, which make no updates of "
        "their own.",
        {
            **_VERL_ASYNCHRONOUS,
            "pool": given("payoff", thread("verl-project/verl-recipe", "issues", 129) + ": joint against alone, net"),
            "weighed": given(True, thread("verl-project/verl-recipe", "issues", 129) + ": paired gradients"),
            "training.generates": given(True, thread("verl-project/verl-recipe", "issues", 129) + ": both directions"),
        },
        left_out="Its leases of engines to training are within a step; ours are given at steps' ends.",
        kinder=EVEN_RANKS,
        claim="1.11 to 1.51 times without borrowing, the more the less staleness is allowed.",
    ),
    Profile(
        "slime",
        "Its fully asynchronous rollout: a pool of trajectories that lasts over steps.",
        {
            **_VERL_ASYNCHRONOUS,
            **SLIME_TRAINING,
            "mode": given("asynchronous", SLIME.at("slime/rollout/fully_async_rollout.py")),
            "router": tried(("prefix-aware", "sticky"), SLIME.at("docs/en/advanced/sglang-config.md")),
            "tail": given("none", SLIME.at("slime/rollout/fully_async_rollout.py")),
            "late": given("train", SLIME.at("slime/rollout/fully_async_rollout.py")),
            "concurrency": given(
                None, SLIME.at("slime/rollout/fully_async_rollout.py") + ": seats of its engines, which engines have"
            ),
        },
        kinder="At a sync it aborts what runs and begins it again; here it goes on. It has no bound on staleness.",
        claim="Training does not wait for the slowest sample under way.",
    ),
    Profile(
        "miles",
        "slime's way with starts by sample: when as many have ended as a group has, the next group begins.",
        {
            **_VERL_ASYNCHRONOUS,
            **SLIME_TRAINING,
            "mode": given("asynchronous", MILES.at("docs/user-guide/fully-async.md")),
            "router": tried(("prefix-aware", "sticky"), MILES.at("miles/ray/rollout/router_manager.py")),
            "tail": given("none", MILES.at("miles/rollout/fully_async_rollout.py")),
            "late": given("train", MILES.at("miles/utils/arguments.py") + ": `--max-weight-staleness` off"),
            "concurrency": tried((None, 1.0), MILES.at("miles/utils/arguments.py") + ": a batch unless given"),
            "training.generates": tried(
                (True, False), thread("radixark/miles", "issues", 1295) + ", proposed: shrink and wake"
            ),
        },
        claim="Engines stay full where lengths differ much.",
    ),
    Profile(
        "AReaL",
        "Starts by the admission formula of staleness and capacity; weights change under running trajectories.",
        {
            **_VERL_ASYNCHRONOUS,
            "mode": given("asynchronous", AREAL.at("docs/en/algorithms/async.md")),
            "router": given("sticky", AREAL.at("areal/infra/remote_inf_engine.py") + ": `rid_to_address`"),
            "tail": given("none", AREAL.at("areal/infra/workflow_executor.py")),
            "weighed": given(True, AREAL.at("areal/engine/core/train_engine.py") + ": weights summed over ranks"),
            "training.packing": given("balanced", AREAL.at("areal/infra/dist_rollout.py")),
            "late": given("train", AREAL.at("areal/infra/staleness_manager.py")),
            "concurrency": tried((None, 1.0), AREAL.at("areal/api/cli_args.py") + ": a batch unless given"),
        },
        kinder="Its first choice of an engine is the next in turn; here the least busy. Running turns keep their "
        "caches at a sync, where it computes them again.",
        claim="Up to 2.77 times synchronous systems.",
    ),
    Profile(
        "SkyRL",
        "AReaL's admission, one worker to a group.",
        {
            **_VERL_ASYNCHRONOUS,
            "mode": given("asynchronous", SKYRL.at("docs/content/docs/tutorials/fully_async.mdx")),
            "router": given(
                "sticky", SKYRL.at("skyrl/backends/skyrl_train/inference_servers/remote_inference_client.py")
            ),
            "tail": given("none", SKYRL.at("skyrl/train/fully_async_trainer.py")),
            "weighed": given(True, SKYRL.at("skyrl/train/config/config.py") + ": `token_mean`"),
            "late": given("train", SKYRL.at("docs/content/docs/tutorials/fully_async.mdx")),
            "concurrency": tried(
                (None, 1.0, 2.0),
                SKYRL.at("docs/content/docs/tutorials/fully_async.mdx") + ": one batch to what staleness allows",
            ),
        },
        left_out="Caches of waiting trajectories outlive a weight sync (`clear_kv_cache_on_weight_sync` off): here "
        "they are computed again.",
        kinder=EVEN_RANKS,
        claim="Generation never waits for stragglers.",
    ),
    Profile(
        "ROLL Flash",
        "A bound on the age of each sample; what is older is given up.",
        {
            **_VERL_ASYNCHRONOUS,
            "mode": given(
                "asynchronous", ROLL.at("docs_roll/docs/User%20Guides/Advanced%20Features/async_training.md")
            ),
            "router": given("sticky", ROLL.at("roll/distributed/scheduler/router.py") + ": `EnvAffinityRouter`"),
            "tail": given("none", ROLL.at("roll/distributed/scheduler/rollout_scheduler.py")),
            "weighed": given(True, ROLL.at("roll/configs/base_config.py") + ": `token-mean`"),
            "late": given("drop", ROLL.at("roll/distributed/scheduler/rollout_scheduler.py") + ": `advance_step`"),
            "concurrency": given(None, ROLL.at("roll/distributed/scheduler/rollout_scheduler.py")),
        },
        left_out="Environments beyond those needed (redundant groups).",
        kinder=EVEN_RANKS,
        claim="Up to 2.72 times on agents' tasks, 2.24 times on others.",
    ),
    Profile(
        "StreamRL",
        "One step off, with training on samples as they come; the longest by rank go first, to engines of their own.",
        {
            **_VERL_ASYNCHRONOUS,
            "mode": given("one-step-off", paper("2504.15930", "abstract: full overlap in asynchronous RL")),
            "router": given("heddle", paper("2504.15930", "abstract: skewness-aware dispatching")),
            "estimator": given("suffix", paper("2504.15930", "abstract: output-length ranker")),
            "planner": given("static-best", paper("2504.15930", "resource allocation by a profiler")),
            "streaming": given(True, paper("2504.15930", "abstract: stream generation")),
            "tail": given("none", paper("2504.15930", "abstract")),
            "weighed": given(True, "as verl's"),
            "late": given("wait", "follows from the mode"),
            "concurrency": given(None, "follows from the mode"),
        },
        left_out="Its ranker is trained on prompts (our estimator takes its place), and weights are sent while the "
        "next iteration trains.",
        claim="Up to 2.66 times co-located systems.",
    ),
    Profile(
        "Laminar",
        "Each trajectory is begun and trained on by itself; the last ones on several engines are gathered on few.",
        {
            **_VERL_ASYNCHRONOUS,
            "mode": given("asynchronous", paper("2510.12633", "abstract: trajectory-level asynchrony")),
            "router": given("sticky", "of a rollout's own trajectories: none leaves it but by repacking"),
            "tail": tried(("repack", "none"), paper("2510.12633", "abstract: dynamic repack")),
            "weighed": given(True, "as verl's, which it builds on"),
            "late": given("wait", "with a tail policy, rounds train on whole batches"),
            "concurrency": given(None, "with a tail policy, by rounds"),
        },
        left_out="Relays, from which each engine fetches weights when it likes: here all sync at once. Repacking looks "
        "at what a round has left, where its rule looks at each engine's cache.",
        claim="Up to 5.48 times on 1,024 GPUs.",
    ),
    Profile(
        "DynaRL",
        "GPUs move between components as the slower one needs them.",
        {
            **_VERL_ASYNCHRONOUS,
            "mode": given(
                "asynchronous", "OSDI 2026: as compared by Libra (" + paper("2606.03077v3", "evaluation") + ")"
            ),
            "planner": tried(("proportional", "one-at-a-time"), "OSDI 2026: GPU migration; the rule is ours"),
        },
        left_out="How it decides: its text was not at hand, so the rule is one of two plain ones.",
        claim="Libra's authors measured theirs 18 to 37 % ahead of it.",
    ),
)
