"""verl's rollout keys as the flags of vLLM that say the same, and so as engine settings."""

from __future__ import annotations

import json
from typing import Any

from steelyard.deploy.hydra import Overrides
from steelyard.deploy.trainer_command import TrainerCommand
from steelyard.deploy.verl import ENGINE_KEYS, ENGINE_SWITCHES, ROLLOUT
from steelyard.deploy.vllm_read import Read, read_vllm
from steelyard.errors import UserError

_DEFAULTS = {"max_num_seqs": "1024", "max_num_batched_tokens": "8192", "gpu_memory_utilization": "0.5"}
_OTHER_SIZES = ("data_parallel_size", "pipeline_model_parallel_size", "expert_parallel_size")


def read_engine(keys: Overrides, trainer: TrainerCommand) -> Read:
    """The model and the settings of rollout engines."""
    path = keys.text("actor_rollout_ref.model.path")
    if path is None:
        raise UserError(f"{trainer.where}: actor_rollout_ref.model.path: missing; the command names no model")
    name = keys.text(f"{ROLLOUT}.name")
    if name not in (None, "vllm"):
        trainer.told.warnings.append(f"{ROLLOUT}.name={name}: simulated as vLLM")
    for size in _OTHER_SIZES:
        if (keys.whole(f"{ROLLOUT}.{size}") or 1) != 1:
            trainer.told.warnings.append(
                f"{ROLLOUT}.{size}: rollout engines are simulated with tensor parallelism only"
            )
    read = read_vllm([trainer.catalogued(path), *_flags(keys, trainer)], trainer.where, trainer.gpu, trainer.told)
    trainer.only_tensor_parallel(read.pool)
    return read


def _flags(keys: Overrides, trainer: TrainerCommand) -> list[str]:
    flags = []
    for flag, key in ENGINE_KEYS.items():
        value = keys.text(f"{ROLLOUT}.{key}")
        if value is None and key in _DEFAULTS:
            value = _DEFAULTS[key]
            trainer.told.defaulted.append(f"engine.{key}: {value}")
        if value is not None:
            flags += [flag, value]
    for name, key in {**ENGINE_SWITCHES, "enforce-eager": "enforce_eager"}.items():
        on = keys.switch(f"{ROLLOUT}.{key}")
        if on is not None:
            flags.append(f"--{name}" if on else f"--no-{name}")
    wanted, sizes = keys.text(f"{ROLLOUT}.quantization"), keys.values(f"{ROLLOUT}.cudagraph_capture_sizes")
    flags += [] if wanted is None else ["--quantization", wanted]
    flags += ["--cudagraph-capture-sizes", *map(str, sizes)] if sizes else []
    for key, value in keys.below(f"{ROLLOUT}.engine_kwargs.vllm").items():
        flags += _flag(key.replace("_", "-"), value)
    return flags


def _flag(name: str, value: Any) -> list[str]:
    """A keyword of vLLM's engine as a flag."""
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", json.dumps(value) if isinstance(value, dict | list) else str(value)]
