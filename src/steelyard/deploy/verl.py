"""Target verl: Hydra overrides of its trainers."""

from __future__ import annotations

import json
import re

from steelyard.deploy.names import deployed_name
from steelyard.deploy.parts import Deployment, Told, command, facts, heading
from steelyard.deploy.posttrain import decisions, gpus_per_node, only_bucket, spread
from steelyard.deploy.vllm_flags import ONLINE, STORED, as_simulated, engine_flags, model_flags
from steelyard.errors import UserError
from steelyard.files.jsontext import parse_json
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.scenario.rollouts import TrajectorySpec

VERSION = "verl 0.9.1"
PROGRAMS = {
    "colocated": ("verl.trainer.main_ppo", "ppo"),
    "split": ("verl.experimental.fully_async_policy.fully_async_main", "fully_async_ppo"),
    "one-step-off": ("verl.experimental.one_step_off_policy.main_ppo", "one_step_off_ppo"),
    "asynchronous": ("verl.experimental.fully_async_policy.fully_async_main", "fully_async_ppo"),
}
ENGINE_KEYS = {  # keys of verl's rollout, by the flag of vLLM that says the same
    "--max-num-seqs": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--gpu-memory-utilization": "gpu_memory_utilization",
    "--scheduling-policy": "scheduling_policy",
    "--max-model-len": "max_model_len",
    "--dtype": "dtype",
}
ENGINE_SWITCHES = {"enable-prefix-caching": "enable_prefix_caching", "enable-chunked-prefill": "enable_chunked_prefill"}
_SIMPLE = re.compile(r"[A-Za-z0-9_./-]+")
ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"


def verl(scenario: PosttrainScenario) -> Deployment:
    """One script that starts verl's trainer."""
    bucket = only_bucket(scenario, VERSION)
    told = Told(notes=decisions(scenario, VERSION))
    sharded = scenario.training.zero == 3
    program, config = PROGRAMS[scenario.mode]
    told.flag("--config-name", f"{config}_trainer" if sharded else f"{config}_megatron_trainer")
    _batch(told, scenario)
    _rollout(told, scenario, bucket.tp)
    _training(told, scenario, sharded)
    _places(told, scenario)
    _tail(told, scenario)
    unique = tuple(dict.fromkeys(told.notes))
    top = heading(
        f"{scenario.name} with {VERSION}, by steelyard emit. Give data.train_files, data.max_prompt_length and reward.",
        unique,
    )
    known = facts(gpu=scenario.gpu, mode=scenario.mode)
    text = "#!/bin/sh\n" + top + "\n" + known + command(["exec", "python3", "-m", program], told.arguments, ['"$@"'])
    return Deployment("verl", {"train.sh": text}, unique)


def _set(told: Told, key: str, value: object) -> None:
    """A Hydra override. Text that is not plain is quoted for Hydra, beside the shell's quotes."""
    written = json.dumps(value) if isinstance(value, bool | dict | list) or value is None else str(value)
    if isinstance(value, str) and not _SIMPLE.fullmatch(value):
        written = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    told.flag(f"{key}={written}")


def _batch(told: Told, scenario: PosttrainScenario) -> None:
    asked, training = scenario.trajectories, scenario.training
    if asked.prompts % training.minibatches:
        raise UserError(
            f"training.minibatches: {training.minibatches} do not divide {asked.prompts} prompts; verl needs it"
        )
    _set(told, "actor_rollout_ref.model.path", deployed_name(scenario.model.config))
    _set(told, "algorithm.adv_estimator", "grpo")
    if PROGRAMS[scenario.mode] == PROGRAMS["asynchronous"]:  # which counts batches by updates, and prompts one by one
        _set(told, "data.train_batch_size", 0)
        _set(told, "data.gen_batch_size", 1)
        _set(told, "async_training.require_batches", training.minibatches)
        _set(told, "rollout.total_rollout_steps", asked.prompts * scenario.steps)
    else:
        _set(told, "data.train_batch_size", asked.prompts)
    _set(told, f"{ROLLOUT}.n", asked.group)
    _set(told, f"{ACTOR}.ppo_mini_batch_size", asked.prompts // training.minibatches)
    _set(told, "trainer.total_training_steps", scenario.steps)
    _set(told, "data.seed", scenario.seed)
    if isinstance(asked, TrajectorySpec):
        _set(told, f"{ROLLOUT}.multi_turn.enable", True)
        _set(told, f"{ROLLOUT}.multi_turn.max_assistant_turns", asked.budget.turns)
        _set(told, "data.max_response_length", asked.budget.response or asked.budget.context)


def _rollout(told: Told, scenario: PosttrainScenario, tp: int) -> None:
    """Engines: verl's own keys where it has them, vLLM's flags for the rest."""
    flags = Told()
    model_flags(flags, scenario.model, scenario.base_dir, ONLINE, STORED)
    engine_flags(flags, as_simulated(flags, scenario.engine, scenario.model, scenario.base_dir))
    told.notes += flags.notes
    _set(told, f"{ROLLOUT}.name", "vllm")
    _set(told, f"{ROLLOUT}.tensor_model_parallel_size", tp)
    asked, most = scenario.trajectories, scenario.engine.max_model_len
    if isinstance(asked, TrajectorySpec):
        if most is None:
            _set(told, f"{ROLLOUT}.max_model_len", asked.budget.context)
        elif most != asked.budget.context:
            told.note("trajectories.budget.context", f"verl has one limit, which is the engine's {most:,} tokens")
    _set(told, f"{ROLLOUT}.enforce_eager", scenario.engine.enforce_eager)
    for name, *values in flags.arguments:
        plain = name.removeprefix("--no-").removeprefix("--")
        if (name, *values) == ("--dtype", "auto"):
            continue  # verl has a default of its own, the type that nearly all models have
        if name in ENGINE_KEYS:
            _set(told, f"{ROLLOUT}.{ENGINE_KEYS[name]}", values[0])
        elif plain in ENGINE_SWITCHES:
            _set(told, f"{ROLLOUT}.{ENGINE_SWITCHES[plain]}", not name.startswith("--no-"))
        elif name == "--quantization":
            _set(told, f"{ROLLOUT}.quantization", values[0])
        elif name == "--cudagraph-capture-sizes":
            _set(told, f"{ROLLOUT}.cudagraph_capture_sizes", list(map(int, values)))
        elif name != "--enforce-eager":
            _engine_keyword(told, plain.replace("-", "_"), values, not name.startswith("--no-"))


def _engine_keyword(told: Told, key: str, values: list[str], on: bool) -> None:
    place = f"+{ROLLOUT}.engine_kwargs.vllm.{key}"
    if not values:
        _set(told, place, on)
    elif values[0].startswith("{"):
        for inner, value in parse_json(values[0], key).items():
            _set(told, f"{place}.{inner}", value)
    else:
        _set(told, place, values[0])


def _training(told: Told, scenario: PosttrainScenario, sharded: bool) -> None:
    training = scenario.training
    _set(told, f"{ACTOR}.use_dynamic_bsz", True)
    _set(told, f"{ACTOR}.ppo_max_token_len_per_gpu", training.micro_batch_tokens)
    if sharded:
        if (training.tp, training.pp, training.ep) != (1, 1, 1):
            raise UserError(
                "training.zero: 3 is FSDP in verl, which has no tp, pp or ep; use zero 1, or leave them at 1"
            )
        _set(told, f"{ACTOR}.ulysses_sequence_parallel_size", training.cp)
        _set(told, "actor_rollout_ref.model.enable_gradient_checkpointing", training.recompute != "none")
        if training.recompute == "selective":
            told.note("training.recompute", "FSDP recomputes all activations, or none")
    else:
        _megatron(told, scenario, f"{ACTOR}.megatron")
    reference = training.reference
    _set(told, f"{ACTOR}.use_kl_loss", reference != "none")
    if reference != "none":
        place = "fsdp_config" if sharded else "megatron"
        _set(told, f"actor_rollout_ref.ref.{place}.param_offload", reference == "offloaded")
    if not training.old_log_probs:
        _set(told, "algorithm.rollout_correction.bypass_mode", True)
    if training.weighed:
        _set(told, f"{ACTOR}.loss_agg_mode", "token-mean")


def _megatron(told: Told, scenario: PosttrainScenario, place: str) -> None:
    training = scenario.training
    _set(told, f"{place}.tensor_model_parallel_size", training.tp)
    _set(told, f"{place}.pipeline_model_parallel_size", training.pp)
    _set(told, f"{place}.context_parallel_size", training.cp)
    _set(told, f"{place}.expert_model_parallel_size", training.ep)
    _set(told, f"{place}.use_distributed_optimizer", training.zero > 0)
    if training.zero == 2:
        told.note("training.zero", "Megatron's distributed optimizer shards as ZeRO 1")
    if training.recompute != "none":
        transformer = f"{place}.override_transformer_config"
        _set(told, f"{transformer}.recompute_granularity", training.recompute)
        if training.recompute == "full":
            _set(told, f"{transformer}.recompute_method", "uniform")
            _set(told, f"{transformer}.recompute_num_layers", 1)


def _places(told: Told, scenario: PosttrainScenario) -> None:
    """GPUs of both stages, and how far they may be apart."""
    per_node = gpus_per_node(scenario)
    nodes, gpus = spread(scenario.training.gpus, per_node, "training")
    _set(told, "trainer.nnodes", nodes)
    _set(told, "trainer.n_gpus_per_node", gpus)
    if scenario.sync.kind != "broadcast":
        told.note("sync.kind", f"{scenario.sync.kind} was simulated; verl's checkpoint engine broadcasts by NCCL")
    if scenario.mode == "colocated":
        return
    nodes, gpus = spread(scenario.rollout_gpus, per_node, "rollout")
    _set(told, "rollout.nnodes", nodes)
    _set(told, "rollout.n_gpus_per_node", gpus)
    _set(told, "actor_rollout_ref.hybrid_engine", False)
    if scenario.mode == "one-step-off":
        if scenario.staleness_bound != 1:
            told.note("staleness", f"{scenario.staleness_bound} was simulated; one step off allows 1")
        return
    _set(told, "async_training.staleness_threshold", scenario.lead)
    _set(told, "async_training.trigger_parameter_sync_step", 1)
    _set(told, "async_training.partial_rollout", scenario.tail.kind == "partial")
    if scenario.mode == "split":
        told.note("mode", "verl has no split mode; without staleness its asynchronous trainer takes turns, too")


def _tail(told: Told, scenario: PosttrainScenario) -> None:
    kind = scenario.tail.kind
    if kind != "none" and not (kind == "partial" and scenario.mode in ("split", "asynchronous")):
        told.note("tail", f"{kind} was simulated, and verl waits for all, or has a rule of its own")
    elif kind == "partial":
        told.note("tail.budget", "verl interrupts rollouts when weights are sent, not after so many tokens")
