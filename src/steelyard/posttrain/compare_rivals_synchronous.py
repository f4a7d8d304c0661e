"""Profiles of systems whose rollouts pause while they train. All of them share the GPUs between both stages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from steelyard.posttrain.compare_profiles import Code, Profile, Setting, given, paper, tried

VERL = Code("verl-project/verl", "1dda039b9c6311889a9c9a26040677e1254814f9")
SLIME = Code("THUDM/slime", "624b824a898ab0ec1fcb4d373004c7f3852bf515")
APRIL = Code("RLsys-Foundation/APRIL", "a72b5853d63a3bf27d804be970e414d31b2c5843")
ROLLPACKER = Code("Farrrrland/RollPacker", "1134217415daa5125d94908ce33aaf4376da6436")

NO_LENGTHS = "its router asks for no lengths"
WAITS = "follows from the mode: a step waits for its batch"
EVEN_RANKS = "Its ranks have equally many samples; here their numbers may differ, which shortens steps."
FIXED = "left to the user, so the best in hindsight"

_TOGETHER: Mapping[str, Setting] = MappingProxyType(
    {
        "pool": given("none", "follows from the mode: both stages have all GPUs"),
        "streaming": given(False, "follows from the mode: training begins after the rollout"),
        "late": given("wait", WAITS),
        "concurrency": given(None, WAITS),
    }
)
VERL_COLOCATED: Mapping[str, Setting] = MappingProxyType(
    {
        "mode": given("colocated", VERL.at("docs/hybrid_flow.rst")),
        "router": given("sticky", VERL.at("verl/workers/rollout/llm_server.py")),
        "estimator": given("blind", NO_LENGTHS),
        "planner": given("static-best", f"degrees of engines and training are {FIXED}"),
        "tail": given("none", VERL.at("verl/trainer/ppo/ray_trainer.py")),
        "weighed": given(True, VERL.at("verl/workers/utils/losses.py")),
        **_TOGETHER,
    }
)
SLIME_TRAINING: Mapping[str, Setting] = MappingProxyType(
    {
        "weighed": given(True, SLIME.at("slime/backends/megatron_utils/loss.py")),
        "training.packing": given("best-fit", SLIME.at("slime/utils/dp_schedule.py")),
    }
)

SYNCHRONOUS = (
    Profile(
        "verl, co-located",
        "The hybrid engine: rollout and training take turns on all GPUs.",
        VERL_COLOCATED,
        kinder=EVEN_RANKS,
        claim="No GPU belongs to a stage that waits for the other.",
    ),
    Profile(
        "Heddle",
        "Longest first; placed by presorted lengths on engines of several degrees, and moved during tool calls.",
        {
            **VERL_COLOCATED,
            "mode": given("colocated", "of the baselines' kind: the paper changes the rollout of a synchronous step"),
            "router": given("heddle", paper("2603.28101", "abstract: priority, placement, migration")),
            "estimator": given("suffix", paper("2603.28101", "abstract: runtime prediction")),
            "planner": given("static-best", paper("2603.28101", "abstract: resource manager")),
            "tail": given("none", paper("2603.28101", "abstract")),
            "weighed": given(True, "as verl's"),
        },
        left_out="Its own trained predictor (ours takes its place), and degrees that change within a run: they are the "
        "best fixed ones in hindsight.",
        kinder=EVEN_RANKS,
        claim="Up to 2.5 times the rollout throughput of step-centric systems.",
    ),
    Profile(
        "RollPacker",
        "Short rounds race more prompts and samples than they need; prompts that lose wait for a long round.",
        {
            **VERL_COLOCATED,
            "mode": given("colocated", ROLLPACKER.at("examples/e2e_performance/rlvr_config_rollpacker_full_7B.yaml")),
            "router": given("least-outstanding", ROLLPACKER.at("roll/distributed/scheduler/generate_scheduler.py")),
            "tail": given("tail-batching", ROLLPACKER.at("README.md")),
            "tail.groups": given(
                1.25, ROLLPACKER.at("examples/e2e_performance/rlvr_config_rollpacker_full_7B.yaml") + ": `max_prompts`"
            ),
            "tail.samples": given(
                1.25,
                ROLLPACKER.at("examples/e2e_performance/rlvr_config_rollpacker_full_7B.yaml")
                + ": 5 of 4 `num_return_sequences`",
            ),
            "weighed": given(True, "as verl's"),
        },
        left_out="The planner that sets the degree of engines by round (the best fixed one in hindsight takes its "
        "place), the reward scheduler (rewards take no GPUs here), and the trainer that starts on samples while "
        "a round ends.",
        kinder=EVEN_RANKS,
        claim="Short rounds do not wait for the longest samples: 2.0 to 2.6 times verl's step.",
    ),
    Profile(
        "Seer",
        "Trajectories run in chunks and queue again after each; a group's first sample tells how long the others are.",
        {
            **VERL_COLOCATED,
            "mode": given("colocated", paper("2511.14617v3", "section 1: stages alternate, on-policy")),
            "router": tried(
                ("sticky", "length-predicted"), paper("2511.14617v3", "abstract: chunks go where there is room")
            ),
            "estimator": given("suffix", paper("2511.14617v3", "abstract: context-aware scheduling")),
            "tail": given("divided", paper("2511.14617v3", "abstract: divided rollout")),
            "tail.chunk": tried((8192, 4096), paper("2511.14617v3", "abstract; the size is left open")),
            "weighed": given(True, "as verl's"),
        },
        left_out="Grouped speculative decoding, and the KV pool of all nodes: a chunk that goes to another engine "
        "takes its cache along over the network.",
        kinder=EVEN_RANKS,
        claim="Up to 2.04 times the rollout throughput of synchronous systems, and 72 to 94 % less tail.",
    ),
    Profile(
        "APRIL",
        "Begins more prompts than a step needs, stops when enough are complete, and goes on with the rest in the next.",
        {
            **VERL_COLOCATED,
            **SLIME_TRAINING,
            "mode": given(
                "colocated",
                APRIL.at("scripts/partial_rollout/deepseek/dapo/run-deepseek-r1-distill-qwen-1.5B-dapo-partial.sh"),
            ),
            "router": given("prefix-aware", SLIME.at("docs/en/advanced/sglang-config.md") + ": the default"),
            "tail": given("over-sampling", APRIL.at("README.md")),
            "tail.factor": tried((2.0, 1.5, 1.25), APRIL.at("README.md") + ": 2 in its scripts, a parameter otherwise"),
        },
        left_out="It drops nothing, however old; here the bound on staleness is that of asynchronous ways.",
        claim="22.5 % more rollout throughput on average, 44 % at most.",
    ),
    Profile(
        "Kimi partial",
        "A trajectory generates up to a budget of tokens in a step, and goes on in the next.",
        {
            **VERL_COLOCATED,
            "mode": given("colocated", paper("2501.12599", "section 2.6: hybrid deployment")),
            "tail": given("partial", paper("2501.12599", "section 2.6: partial rollouts")),
            "tail.budget": tried((16384, 8192, 32768), paper("2501.12599", "section 2.6: fixed, of unstated size")),
            "weighed": given(True, "as verl's"),
            "router": given("sticky", paper("2501.12599", "section 2.6: saved segments go on")),
        },
        left_out="Detection of repetitions, and segments of any age: here the bound on staleness is that of "
        "asynchronous ways, and its steps train on the groups that are complete, which may be fewer than a batch.",
        kinder=EVEN_RANKS,
        claim="The longest trajectories do not set the length of a step.",
    ),
)
