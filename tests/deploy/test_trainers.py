"""Commands of trainers as people write them: variables, arrays, defaults, what is refused and what is warned of."""

from __future__ import annotations

import re
from typing import Any

import pytest

from steelyard.deploy import Imported, ImportOptions, emit, read, scenario_yaml
from steelyard.errors import UserError
from steelyard.scenario import load_posttrain
from support.paths import ROOT

_VERL = """
set -x
MODEL=${MODEL:-Qwen/Qwen3-8B}
tp=4
NODES=${NODES:-${WORLD:-2}}
if [ "$tp" = 8 ]; then
    tp=8
fi
ROLLOUT=(
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.tensor_model_parallel_size=${tp}   # of engines
    # actor_rollout_ref.rollout.max_num_seqs=1
    +actor_rollout_ref.rollout.engine_kwargs.vllm.compilation_config.cudagraph_mode=PIECEWISE
)
ROLLOUT+=(actor_rollout_ref.rollout.n=5)
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    actor_rollout_ref.model.path="$MODEL" data.train_files="$HOME/data.parquet" \\
    data.train_batch_size=512 data.max_prompt_length=1024 data.max_response_length=2048 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.use_dynamic_bsz=True \\
    trainer.nnodes=$NODES trainer.n_gpus_per_node=8 actor_rollout_ref.actor.fsdp_config.fsdp_size=8 \\
    "${ROLLOUT[@]}" "$@"
"""
_SLIME = """
source models/qwen3-30B-A3B.sh
CKPT_ARGS=(
   --hf-checkpoint /models/Qwen3-30B-A3B
   #--hf-checkpoint /models/Qwen3-30B-A3B-FP8
)
ROLLOUT_ARGS=(
   --prompt-data /models/data.jsonl
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-max-response-len 8192
   --global-batch-size 128
   --over-sampling-batch-size 64
)
PERF_ARGS=(--tensor-model-parallel-size 4 --expert-model-parallel-size 8
   --use-dynamic-batch-size --max-tokens-per-gpu 20480)
SGLANG_ARGS=(
   --rollout-num-gpus-per-engine 2
   --sglang-mem-fraction-static 0.7
   --sglang-enable-something 3
)
ray job submit --address="http://127.0.0.1:8265" -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 \\
   --colocate ${MODEL_ARGS[@]} ${CKPT_ARGS[@]} ${ROLLOUT_ARGS[@]} ${PERF_ARGS[@]} ${SGLANG_ARGS[@]} ${OTHER_ARGS[@]}
"""


def _read(kind: str, text: str, **options: Any) -> Imported:
    return read(kind, text, ImportOptions("h200", **options))


def test_a_script_of_verl() -> None:
    found = _read("verl", _VERL)
    data = found.data
    assert (data["model"], data["mode"]) == ("qwen3-8b", "colocated")
    assert data["rollout"] == [{"tp": 4, "replicas": 4}]
    assert data["training"] == {
        "dp": 16, "minibatches": 4, "zero": 3, "recompute": "full", "micro_batch_tokens": 16384,
    }  # fmt: skip
    assert data["trajectories"]["budget"] == {"turns": 1, "context": 3072, "response": 2048}
    assert (data["trajectories"]["prompts"], data["trajectories"]["group"]) == (512, 5)
    engine = data["engine"]
    assert (engine["max_num_seqs"], engine["gpu_memory_utilization"], engine["cudagraph"]) == (1024, 0.5, "piecewise")
    assert "max_model_len" not in engine
    assert "engine.max_num_seqs: 1024" in found.remarks.defaulted
    warned = {line.partition(":")[0] for line in found.remarks.warnings}
    assert warned == {"tp", "actor_rollout_ref.actor.fsdp_config.fsdp_size=8"}
    assert any(line.startswith("steps") for line in found.remarks.assumed)
    assert "The trajectories are a stand-in" in scenario_yaml(found)


def test_a_script_of_slime() -> None:
    found = _read("slime", _SLIME)
    data = found.data
    assert data["model"] == "qwen3-30b-a3b"
    assert data["rollout"] == [{"tp": 2, "replicas": 4}]
    training = {"tp": 4, "dp": 2, "ep": 8, "recompute": "none", "micro_batch_tokens": 20480, "minibatches": 2}
    assert data["training"] == training
    assert data["tail"] == {"kind": "over-sampling", "factor": 2.0}
    assert data["engine"]["gpu_memory_utilization"] == 0.7
    warned = [line.split(":")[0] for line in found.remarks.warnings]
    assert warned == ["${OTHER_ARGS[@]}", "--enable-something 3"]
    assert any("slime throws it away" in line for line in found.remarks.assumed)


def test_asynchronous_batches_are_counted_in_updates() -> None:
    """verl's asynchronous trainer wants a batch of 0; its own is updates times their prompts."""
    scenario = load_posttrain(
        ROOT / "examples/posttrain/search-48.yaml",
        ["mode=asynchronous", "rollout=[{tp: 2, replicas: 16}]", "training.minibatches=4"],
    )
    made = emit(scenario, "verl")
    words = made.files["train.sh"].split()
    for word in ("data.train_batch_size=0", "data.gen_batch_size=1", "async_training.require_batches=4"):
        assert word in words
    assert "actor_rollout_ref.actor.ppo_mini_batch_size=64" in words
    assert f"rollout.total_rollout_steps={256 * 5}" in words
    data = read("verl", made.files).data
    assert (data["trajectories"]["prompts"], data["training"]["minibatches"]) == (256, 4)
    assert (data["mode"], data["staleness"]) == ("asynchronous", 2)


def test_engines_of_slime_may_not_be_counted() -> None:
    command = "python train.py --hf-checkpoint Qwen/Qwen3-8B --rollout-batch-size 8 --rollout-num-gpus-per-engine 2"
    assert _read("slime", command, replicas=3).data["rollout"] == [{"tp": 2, "replicas": 3}]
    found = _read("slime", command)
    assert found.data["rollout"] == [{"tp": 2, "replicas": 1}]
    assert any("--replicas" in line for line in found.remarks.assumed)


_PPO = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B"
_TRAIN = "python3 train.py --hf-checkpoint Qwen/Qwen3-8B --rollout-batch-size 8"


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("verl", "ls -l", "has no `python3 -m verl.trainer.main_ppo ...` command"),
        ("verl", "python3 -m verl.trainer.main_ppo", "actor_rollout_ref.model.path: missing"),
        ("verl", f"{_PPO}\n{_PPO}", "2 commands that start a trainer; give one"),
        ("verl", f"{_PPO} data.train_batch_size='$((2 * 8))'", "is not a whole number; write the value"),
        ("verl", f"{_PPO} data.train_batch_size=0", "0 prompts a step"),
        ("verl", f"{_PPO} actor_rollout_ref.rollout.tensor_model_parallel_size=3", "do not divide into engines of 3"),
        ("verl", f"{_PPO} actor_rollout_ref.actor.ulysses_sequence_parallel_size=3", "do not divide into groups"),
        ("verl", f"{_PPO} actor_rollout_ref.actor.use_dynamic_bsz=maybe", "'maybe' is not true or false"),
        ("verl", f"{_PPO} actor_rollout_ref.rollout.cudagraph_capture_sizes=8", "'8' is not a list"),
        ("verl", f"{_PPO} +actor_rollout_ref.rollout.engine_kwargs.vllm.{'a.' * 99}a=1", "nested"),
        ("slime", "python3 train.py", "--hf-checkpoint: missing"),
        ("slime", "python3 train.py --hf-checkpoint a", "--rollout-batch-size: missing"),
        ("slime", f"{_TRAIN.replace('train.py', 'train_async.py')} --colocate", "--colocate"),
        ("slime", f"{_TRAIN} --recompute-granularity some", "'some' is not one of full, selective"),
    ],
)
def test_what_cannot_be_read_is_one_message(kind: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        _read(kind, text)


@pytest.mark.parametrize("text", ["a=x\n" + "a=$a$a\n" * 60, "a=x\n" + "a=(${a[@]} ${a[@]})\n" * 60])
def test_variables_cannot_grow_without_bound(text: str) -> None:
    with pytest.raises(UserError, match="variables make more text"):
        _read("verl", f"{text}{_PPO}")
