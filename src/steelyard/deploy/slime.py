"""Target slime: ``train.py`` or ``train_async.py``, with Megatron and SGLang."""

from __future__ import annotations

from steelyard.deploy.names import deployed_name
from steelyard.deploy.parts import Deployment, Told, command, facts, heading
from steelyard.deploy.posttrain import decisions, gpus_per_node, only_bucket, spread
from steelyard.deploy.sglang_flags import ONLINE, STORED, sglang_engine
from steelyard.deploy.vllm_flags import model_flags
from steelyard.errors import UserError
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.scenario.rollouts import TrajectorySpec

VERSION = "slime 0.3.1"


def slime(scenario: PosttrainScenario) -> Deployment:
    """One script that starts slime's trainer."""
    bucket = only_bucket(scenario, VERSION)
    if scenario.mode == "asynchronous":
        raise UserError(
            "mode: asynchronous cannot be deployed with slime, whose rollouts run one step ahead; use one-step-off"
        )
    told = Told(notes=decisions(scenario, VERSION))
    _places(told, scenario, bucket.tp)
    _batch(told, scenario)
    _training(told, scenario)
    _engines(told, scenario)
    unique = tuple(dict.fromkeys(told.notes))
    source = "Source slime's script of the model first: its MODEL_ARGS are added."
    about = f"{scenario.name} with {VERSION}, by steelyard emit. {source}"
    top = heading(about, unique)
    program = "train_async.py" if scenario.mode == "one-step-off" else "train.py"
    run = command(["exec", "python3", program], told.arguments, ['"${MODEL_ARGS[@]}"', '"$@"'])
    known = facts(gpu=scenario.gpu, mode=scenario.mode)
    return Deployment("slime", {"train.sh": "#!/bin/bash\n" + top + "\n" + known + run}, unique)


def _places(told: Told, scenario: PosttrainScenario, tp: int) -> None:
    nodes, gpus = spread(scenario.training.gpus, gpus_per_node(scenario), "training")
    told.flag("--actor-num-nodes", nodes)
    told.flag("--actor-num-gpus-per-node", gpus)
    if scenario.mode == "colocated":
        told.flag("--colocate")
    else:
        told.flag("--rollout-num-gpus", scenario.rollout_gpus)
    told.flag("--rollout-num-gpus-per-engine", tp)
    told.flag("--num-gpus-per-node", gpus_per_node(scenario))
    if scenario.sync.kind == "disk":
        told.flag("--update-weight-transport", "disk")
    elif scenario.sync.kind == "shards":
        told.note("sync.kind", "shards were simulated; slime broadcasts weights by NCCL")
    if scenario.mode == "one-step-off" and scenario.staleness_bound != 1:
        told.note("staleness", f"{scenario.staleness_bound} was simulated; slime's train_async.py is one step ahead")


def _batch(told: Told, scenario: PosttrainScenario) -> None:
    asked, training = scenario.trajectories, scenario.training
    told.flag("--hf-checkpoint", deployed_name(scenario.model.config))
    told.flag("--num-rollout", scenario.steps)
    told.flag("--rollout-batch-size", asked.prompts)
    told.flag("--n-samples-per-prompt", asked.group)
    told.flag("--num-steps-per-rollout", training.minibatches)
    told.flag("--advantage-estimator", "grpo")
    told.flag("--seed", scenario.seed)
    if isinstance(asked, TrajectorySpec):
        told.flag("--rollout-max-context-len", asked.budget.context)
        if asked.budget.response is not None:
            told.flag("--rollout-max-response-len", asked.budget.response)
    kind = scenario.tail.kind
    if kind == "over-sampling":
        told.flag("--over-sampling-batch-size", round(asked.prompts * scenario.tail.begun))
        told.flag("--partial-rollout")  # what is not complete goes on in the next step
    elif kind == "partial":
        told.flag("--partial-rollout")
        told.note("tail.budget", "slime interrupts rollouts when a batch is complete, not after so many tokens")
    elif kind != "none":
        told.note("tail", f"{kind} was simulated, and slime has no such rule")


def _training(told: Told, scenario: PosttrainScenario) -> None:
    training = scenario.training
    told.flag("--tensor-model-parallel-size", training.tp)
    if training.tp > 1:
        told.flag("--sequence-parallel")
    told.flag("--pipeline-model-parallel-size", training.pp)
    told.flag("--context-parallel-size", training.cp)
    told.flag("--expert-model-parallel-size", training.ep)
    told.flag("--use-dynamic-batch-size")
    told.flag("--max-tokens-per-gpu", training.micro_batch_tokens)
    told.flag("--balance-data")
    if training.zero != 1:
        told.note("training.zero", "slime uses Megatron's distributed optimizer, which shards as ZeRO 1")
    if training.recompute != "none":
        told.flag("--recompute-granularity", training.recompute)
        if training.recompute == "full":
            told.flag("--recompute-method", "uniform")
            told.flag("--recompute-num-layers", 1)
    if training.reference != "none":
        told.flag("--use-kl-loss")
        told.note("training.reference", "give --ref-load; slime keeps the reference on the host between its uses")
    if not training.old_log_probs:
        told.flag("--use-rollout-logprobs")
    if training.weighed:
        told.flag("--calculate-per-token-loss")


def _engines(told: Told, scenario: PosttrainScenario) -> None:
    """slime passes on every flag of SGLang with a prefix."""
    flags = Told()
    model_flags(flags, scenario.model, scenario.base_dir, ONLINE, STORED)
    sglang_engine(flags, scenario.engine)
    flags.note("engine.scheduler", "vLLM's scheduler was simulated; slime's engines are SGLang's")
    told.notes += flags.notes
    for name, *values in flags.arguments:
        told.flag(name.replace("--", "--sglang-", 1), *values)
