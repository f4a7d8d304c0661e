"""slime's command, read back into a post-training scenario's data."""

from __future__ import annotations

import re
from typing import Any

from steelyard.deploy.parts import brief
from steelyard.deploy.sglang_read import read_sglang
from steelyard.deploy.trainer_command import TrainerCommand
from steelyard.deploy.vllm_read import Read
from steelyard.deploy.words import Flags, ShellLine
from steelyard.errors import UserError

PROGRAMS: dict[tuple[str, ...], str] = {("train.py",): "split", ("train_async.py",): "one-step-off"}
_SWITCHES = (
    *("colocate", "partial-rollout", "use-kl-loss", "use-rollout-logprobs", "calculate-per-token-loss"),
    *("sequence-parallel", "use-dynamic-batch-size", "balance-data"),
)
_WITHOUT_EFFECT = re.compile(  # data and reward, the learning rule, logs and checkpoints, the model's own shape
    r"--(advantage-estimator|apply-chat-template|async-save|attention-|balance-data|bf16|ci-|clip-grad|custom-"
    r"|disable-(grpo|rewards)|dump-|dynamic-sampling|entropy-|eps-|eval-|group-rm|input-key|kl-|label-key|load|log-"
    r"|loss-type|lr|metadata-key|min-lr|n-samples-per-eval|normaliz|num-epoch|num-gpus-per-node|only-train|opt|prompt-data"
    r"|recompute-(method|num)|ref-|reward-key|rm-|rollout-(function|global|seed|shuffle|skip|stop|temperature|top)|save|seed"
    r"|sequence-parallel|skip-eval|tb-|use-(tensorboard|tis|wandb)|wandb-|weight-decay|adam-|accumulate|hidden-dropout"
    r"|swiglu|num-(layers|attention|query|experts)|hidden-size|ffn-|use-rotary|disable-bias|rotary-|vocab-|kv-channels"
    r"|qk-|norm-|group-query|untie|moe-(ffn|router|layer|aux|shared|token-drop)|add-qkv|use-gated|multi-latent|q-lora|v-head)"
)


def read_slime(words: list[str], line: ShellLine, trainer: TrainerCommand) -> dict[str, Any]:
    """The scenario of a command's flags."""
    told = trainer.told
    passed_on = re.compile(r"\$\{?\w+\[@\]\}?")
    kept = [word for word in words if not passed_on.fullmatch(word)]
    told.warnings += [f"{word}: its values are not in the script" for word in words if passed_on.fullmatch(word)]
    flags = Flags.of(kept, trainer.where, frozenset(f"--{name}" for name in _SWITCHES), {})
    engine = _engine(flags, trainer)
    _batch(flags, trainer)
    gpus = trainer.given(flags.whole("--actor-num-nodes"), 1, "nodes for training")
    gpus *= trainer.given(flags.whole("--actor-num-gpus-per-node"), 8, "GPUs of a node for training")
    _layout(flags, trainer, gpus)
    asked = flags.whole("--rollout-num-gpus")
    if flags.switch("colocate"):
        if trainer.mode == "one-step-off":
            raise UserError(
                f"{trainer.where}: --colocate: train_async.py has GPUs of its own for rollouts; leave it out"
            )
        trainer.mode, asked = "colocated", gpus
    tp = trainer.given(flags.whole("--rollout-num-gpus-per-engine"), 1, "rollout.tp")
    transport = flags.text("--update-weight-transport")
    if transport == "disk":
        trainer.more["sync"] = {"kind": "disk"}
    elif transport not in (None, "nccl"):
        told.warnings.append(f"--update-weight-transport {brief(transport)}: simulated as a broadcast")
    _tail(flags, trainer)
    _left_over(flags, trainer)
    return trainer.scenario(engine.model, trainer.buckets(asked, tp), engine.engine)


def _batch(flags: Flags, trainer: TrainerCommand) -> None:
    prompts = flags.whole("--rollout-batch-size")
    if prompts is None:
        raise UserError(f"{trainer.where}: --rollout-batch-size: missing; the command does not say how large a step is")
    group = trainer.given(flags.whole("--n-samples-per-prompt"), 1, "trajectories.group")
    trainer.batch(prompts, group)
    updates, samples = flags.whole("--num-steps-per-rollout"), flags.whole("--global-batch-size")
    if updates is None and samples is not None and samples > 0:
        updates = max(1, prompts * group // samples)
    if updates not in (None, 1):
        trainer.training["minibatches"] = updates
    for flag, key in (("--num-rollout", "steps"), ("--seed", "seed")):
        value = flags.whole(flag)
        if value is not None:
            trainer.more[key] = value
    limits = (("--rollout-max-context-len", "context"), ("--rollout-max-response-len", "response"))
    for flag, key in limits:
        value = flags.whole(flag)
        if value is not None:
            trainer.budget[key] = value


def _layout(flags: Flags, trainer: TrainerCommand, gpus: int) -> None:
    """Megatron's parallelism, and what a step does."""
    training = trainer.training
    names = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size")
    trainer.train_on(gpus, *(flags.whole(name) or 1 for name in names))
    experts = flags.whole("--expert-model-parallel-size") or 1
    if experts != 1:
        training["ep"] = experts
    training["recompute"] = flags.text("--recompute-granularity", "full", "selective") or "none"
    tokens = flags.whole("--max-tokens-per-gpu")
    if flags.switch("use-dynamic-batch-size") and tokens is not None:
        training["micro_batch_tokens"] = tokens
    else:
        trainer.told.assumed.append(
            "training.micro_batch_tokens: the scenario's usual number; the command counts samples"
        )
    if flags.switch("use-kl-loss"):
        training["reference"] = "offloaded"  # slime keeps it on the host between its uses
    if flags.switch("use-rollout-logprobs"):
        training["old_log_probs"] = False
    if flags.switch("calculate-per-token-loss"):
        training["weighed"] = True


def _tail(flags: Flags, trainer: TrainerCommand) -> None:
    begun, partial = flags.whole("--over-sampling-batch-size"), flags.switch("partial-rollout")
    prompts = trainer.trajectories["prompts"]
    if begun is not None and begun > prompts:
        trainer.more["tail"] = {"kind": "over-sampling", "factor": begun / prompts}
        if not partial:
            trainer.told.assumed.append("tail: what is not complete goes on in the next step; slime throws it away")
    elif partial:
        trainer.more["tail"] = "partial"
        trainer.told.assumed.append(
            "tail.budget: the scenario's usual number; slime interrupts when a batch is complete"
        )


def _engine(flags: Flags, trainer: TrainerCommand) -> Read:
    """The flags that slime passes on to SGLang. Rollouts are simulated with vLLM's scheduler."""
    name = flags.text("--hf-checkpoint")
    if name is None:
        raise UserError(f"{trainer.where}: --hf-checkpoint: missing; the command names no model")
    page = flags.whole("--sglang-page-size")
    words = ["--model-path", trainer.catalogued(name)]
    for flag in [each for each in flags.found if each.startswith("--sglang-")]:
        words += [flag.replace("--sglang-", "--", 1), *flags.found.pop(flag)]
    read = read_sglang(words, trainer.where, trainer.told)
    trainer.only_tensor_parallel(read.pool)
    engine = {key: value for key, value in read.engine.items() if key not in ("scheduler", "sglang")}
    trainer.told.assumed.append("engine.scheduler: vllm; rollouts are not simulated with SGLang's own")
    if page is not None:
        engine["block_size"] = page
    else:
        trainer.told.assumed.append("engine.block_size: the scenario's usual number; SGLang keeps single tokens")
    return Read(read.pool, read.model, engine)


def _left_over(flags: Flags, trainer: TrainerCommand) -> None:
    for name, values in flags.left():
        shown = brief(" ".join([name, *values]))
        if _WITHOUT_EFFECT.match(name):
            trainer.told.ignored.append(shown)
        else:
            trainer.told.warnings.append(f"{shown}: steelyard does not know this flag, or what it does to performance")
    for word in flags.positional:
        trainer.told.warnings.append(f"{brief(word)}: is no flag, and is left out")
