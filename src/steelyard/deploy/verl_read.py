"""verl's command, read back into a post-training scenario's data."""

from __future__ import annotations

from math import ceil
from typing import Any

from steelyard.deploy.hydra import Overrides
from steelyard.deploy.parts import brief
from steelyard.deploy.trainer_command import TrainerCommand
from steelyard.deploy.verl import ACTOR, ROLLOUT
from steelyard.deploy.verl import PROGRAMS as EMITTED
from steelyard.deploy.verl_engine import read_engine
from steelyard.deploy.words import ShellLine

PROGRAMS: dict[tuple[str, ...], str] = {
    ("-m", EMITTED[mode][0]): mode for mode in ("colocated", "one-step-off", "asynchronous")
}  # and the mode of each
_TRANSFORMER = f"{ACTOR}.megatron.override_transformer_config"
_WITHOUT_EFFECT = (  # beginnings of keys: data and reward, the learning rule, logs and checkpoints
    *("data.", "algorithm.", "critic.", "reward", "custom_reward_function.", "trainer.", "ray_kwargs.", "hydra"),
    *("global_profiler.", "rollout.total_", f"{ACTOR}.optim.", f"{ACTOR}.clip_", f"{ACTOR}.entropy_coeff"),
    *(f"{ACTOR}.kl_loss_", f"{ACTOR}.checkpoint.", f"{ACTOR}.policy_loss.", f"{ACTOR}.grad_clip", f"{ACTOR}.shuffle"),
    *(f"{ROLLOUT}.{key}" for key in ("temperature", "top_", "val_kwargs.", "do_sample", "load_format", "multi_turn.")),
    *(f"{ROLLOUT}.{key}" for key in ("log_prob_", "calculate_log_probs", "disable_log_stats", "mode", "trace.")),
    *("actor_rollout_ref.ref.log_prob_", "actor_rollout_ref.model.use_remove_padding"),
    *("actor_rollout_ref.model.trust_remote_code", "actor_rollout_ref.model.tokenizer_path"),
    *("actor_rollout_ref.nccl_timeout", "actor_rollout_ref.hybrid_engine", f"{_TRANSFORMER}.recompute_"),
)


def read_verl(words: list[str], line: ShellLine, trainer: TrainerCommand) -> dict[str, Any]:
    """The scenario of a command's overrides."""
    keys = Overrides.of(words, trainer.where)
    megatron = _megatron(keys)
    _batch(keys, trainer)
    _limits(keys, trainer)
    gpus = _gpus(keys, ("trainer",), "training", trainer)
    if megatron:
        _megatron_layout(keys, trainer, gpus)
    else:
        _sharded_layout(keys, trainer, gpus)
    _training(keys, trainer, "megatron" if megatron else "fsdp_config")
    tp = trainer.given(keys.whole(f"{ROLLOUT}.tensor_model_parallel_size"), 2, "rollout.tp")
    if trainer.mode != "colocated":
        gpus = _gpus(keys, ("rollout", ROLLOUT), "rollout", trainer)
    if trainer.mode == "asynchronous":
        _ahead(keys, line, trainer)
    engine = read_engine(keys, trainer)
    _left_over(keys, trainer)
    return trainer.scenario(engine.model, trainer.buckets(gpus, tp), engine.engine)


def _megatron(keys: Overrides) -> bool:
    """Whether Megatron trains, or FSDP, which is the default."""
    chosen = (keys.config, keys.text("model_engine"), keys.text(f"{ACTOR}.strategy"))
    return any("megatron" in each for each in chosen if each)


def _batch(keys: Overrides, trainer: TrainerCommand) -> None:
    """Prompts of a step. The asynchronous trainer counts a batch in updates."""
    update = trainer.given(keys.whole(f"{ACTOR}.ppo_mini_batch_size"), 256, "prompts of an update")
    prompts = keys.whole("data.train_batch_size")
    if trainer.mode == "asynchronous":
        every = trainer.given(keys.whole("async_training.trigger_parameter_sync_step"), 4, "batches between syncs")
        minibatches = every * trainer.given(keys.whole("async_training.require_batches"), 1, "updates of a batch")
        prompts = update * minibatches
    else:
        prompts = trainer.given(prompts, 1024, "trajectories.prompts")
        minibatches = ceil(prompts / update) if update > 0 else 0
    trainer.batch(prompts, trainer.given(keys.whole(f"{ROLLOUT}.n"), 1, "trajectories.group"))
    if minibatches != 1:
        trainer.training["minibatches"] = minibatches
    steps, seed = keys.whole("trainer.total_training_steps"), keys.whole("data.seed")
    if steps is None:
        trainer.told.assumed.append("steps: the scenario's usual number; the command runs until its data end")
    trainer.more |= {key: value for key, value in (("steps", steps), ("seed", seed)) if value is not None}


def _limits(keys: Overrides, trainer: TrainerCommand) -> None:
    """Most tokens and turns of a trajectory."""
    prompt, response = keys.whole("data.max_prompt_length"), keys.whole("data.max_response_length")
    answer = trainer.given(response, 512, "trajectories.budget.response")
    most = keys.found.get(f"{ROLLOUT}.max_model_len", "null")
    whole = keys.whole(f"{ROLLOUT}.max_model_len")
    if whole is None:
        whole = trainer.given(prompt, 512, "tokens of a prompt") + answer
    else:
        keys.found[f"{ROLLOUT}.max_model_len"] = most  # of the engine, too
    trainer.budget["context"] = whole
    if answer < whole:
        trainer.budget["response"] = answer
    turns = keys.whole(f"{ROLLOUT}.multi_turn.max_assistant_turns")
    if not keys.switch(f"{ROLLOUT}.multi_turn.enable"):
        trainer.told.defaulted.append("trajectories.budget.turns: 1, since multi_turn is off")
        turns = 1
    if turns is not None:
        trainer.budget["turns"] = turns


def _gpus(keys: Overrides, places: tuple[str, ...], role: str, trainer: TrainerCommand) -> int:
    """GPUs of a role."""
    nodes = [keys.whole(f"{place}.nnodes") for place in places]
    each = [keys.whole(f"{place}.n_gpus_per_node") for place in places]
    per_node = trainer.given(next(filter(None, each), None), 8, f"GPUs of a node for {role}")
    return per_node * trainer.given(next(filter(None, nodes), None), 1, f"nodes for {role}")


def _megatron_layout(keys: Overrides, trainer: TrainerCommand, gpus: int) -> None:
    place = f"{ACTOR}.megatron"
    sizes = [keys.whole(f"{place}.{name}_parallel_size") or 1 for name in ("tensor_model", "pipeline_model", "context")]
    trainer.train_on(gpus, *sizes)
    experts = keys.whole(f"{place}.expert_model_parallel_size") or 1
    if experts != 1:
        trainer.training["ep"] = experts
    if keys.switch(f"{place}.use_distributed_optimizer") is False:
        trainer.training["zero"] = 0
    trainer.training["recompute"] = keys.text(f"{_TRANSFORMER}.recompute_granularity") or "none"


def _sharded_layout(keys: Overrides, trainer: TrainerCommand, gpus: int) -> None:
    """FSDP, which shards weights, too, unless they are kept after the forward pass."""
    sizes = (f"{ACTOR}.ulysses_sequence_parallel_size", f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size")
    trainer.train_on(gpus, 1, 1, next(filter(None, map(keys.whole, sizes)), 1))
    kept = keys.switch(f"{ACTOR}.fsdp_config.reshard_after_forward") is False
    trainer.training["zero"] = 2 if kept else 3
    recomputed = keys.switch("actor_rollout_ref.model.enable_gradient_checkpointing") is not False
    trainer.training["recompute"] = "full" if recomputed else "none"


def _training(keys: Overrides, trainer: TrainerCommand, place: str) -> None:
    training = trainer.training
    tokens = keys.whole(f"{ACTOR}.ppo_max_token_len_per_gpu")
    if keys.switch(f"{ACTOR}.use_dynamic_bsz"):
        training["micro_batch_tokens"] = trainer.given(tokens, 16384, "training.micro_batch_tokens")
    else:
        trainer.told.assumed.append(
            "training.micro_batch_tokens: the scenario's usual number; the command counts samples"
        )
    offloaded = keys.switch(f"actor_rollout_ref.ref.{place}.param_offload")
    rewarded = keys.switch("algorithm.use_kl_in_reward")
    if keys.switch(f"{ACTOR}.use_kl_loss") or rewarded:
        training["reference"] = "offloaded" if offloaded else "resident"
    if keys.switch("algorithm.rollout_correction.bypass_mode"):
        training["old_log_probs"] = False
    if keys.text(f"{ACTOR}.loss_agg_mode") == "token-mean":
        training["weighed"] = True


def _ahead(keys: Overrides, line: ShellLine, trainer: TrainerCommand) -> None:
    """How far rollouts run ahead. Without staleness both stages take turns."""
    threshold = keys.number("async_training.staleness_threshold")
    if threshold is None:
        threshold = 0.1
        trainer.told.defaulted.append("staleness: verl's threshold of 0.1")
    if threshold != ceil(threshold):
        trainer.told.assumed.append(f"staleness: a threshold of {threshold:g} batches is simulated as a whole one")
    partial = keys.switch("async_training.partial_rollout") is not False
    if partial:
        trainer.more["tail"] = "partial"
        trainer.told.assumed.append("tail.budget: the scenario's usual number; verl interrupts rollouts at each sync")
    if threshold == 0 and line.facts.get("mode") != "asynchronous":
        trainer.mode = "split"
    else:
        trainer.more["staleness"] = ceil(threshold) + partial


def _left_over(keys: Overrides, trainer: TrainerCommand) -> None:
    for key, value in keys.found.items():
        shown = brief(f"{key}={value}")
        if key.startswith(_WITHOUT_EFFECT):
            trainer.told.ignored.append(shown)
        else:
            trainer.told.warnings.append(f"{shown}: steelyard does not know this key, or what it does to performance")
    for word in keys.other:
        trainer.told.warnings.append(f"{brief(word)}: is no override, and is left out")
