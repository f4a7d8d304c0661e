"""Published training speeds beside ours: `python -m tools.published_training [KEPT_UP]`.

Each case is a job as its source describes it, in 16 bits. Nothing is fitted to any of them; `docs/training.md` says
what the sources are and where the differences come from.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import numpy as np

from steelyard.hardware import Gpu, find_gpu, topology_of
from steelyard.model import Attention, DenseFfn, Layer, ModelSpec, load_model
from steelyard.posttrain.training.compile import compile_training
from steelyard.posttrain.training.efficiency import KEPT_UP
from steelyard.posttrain.training.layout import Recompute, TrainLayout
from steelyard.posttrain.training.settings import TrainSettings

UPDATES = TrainSettings(old_log_probs=False)


@dataclass(frozen=True)
class WholeStep:
    """A GRPO step of NeMo RL on H100s, generation included: an upper bound on its training part."""

    model: str
    layout: TrainLayout
    length: int  # the mean, which all 2,048 sequences have here
    seconds: float

    def ours(self) -> float:
        """Log-probabilities and four updates, without generation and weight sync."""
        settings = TrainSettings(minibatches=4, packing="best-fit")
        cost = compile_training(load_model(self.model), H100, topology_of(H100), self.layout, settings)
        return cost.step(np.full(2048, self.length)).seconds


@dataclass(frozen=True)
class Published:
    """A job and its speed in tokens per GPU and second."""

    source: str
    model: str | ModelSpec
    gpu: Gpu
    layout: TrainLayout
    sequences: int  # of one update
    length: int
    speed: float
    settings: TrainSettings = UPDATES

    def ours(self) -> float:
        """The same job's speed here."""
        model = load_model(self.model) if isinstance(self.model, str) else self.model
        cost = compile_training(model, self.gpu, topology_of(self.gpu), self.layout, self.settings)
        return cost.step(np.full(self.sequences, self.length)).tokens_per_gpu_second

    @property
    def name(self) -> str:
        return self.model if isinstance(self.model, str) else self.model.name


def gpt(name: str, hidden: int, layers: int, heads: int, vocab: int = 50368) -> ModelSpec:
    """A GPT with feed-forward blocks four times as wide as its hidden state, as a gated one of as many weights."""
    attention = Attention("gqa", heads, heads, hidden // heads)
    wide = 8 * hidden // 3 // 64 * 64
    layer = Layer(attention, DenseFfn(wide), count=layers)
    return ModelSpec(name, "gpt", hidden, (layer,), vocab, True, 65536, "bfloat16")


MPT_7B = gpt("MPT-7B", 4096, 32, 32)
MPT_13B = gpt("MPT-13B", 5120, 40, 40)
MPT_30B = gpt("MPT-30B", 7168, 48, 56)
MPT_70B = gpt("MPT-70B", 8192, 80, 64)
GPT_22B = gpt("GPT-22B", 6144, 48, 64, 51200)
GPT_175B = gpt("GPT-175B", 12288, 96, 96, 51200)
A100, H100 = find_gpu("a100"), find_gpu("h100")
H100_TITAN = replace(H100, full_name="H100 with HBM2e", memory_bytes=94 << 30, memory_bandwidth=2.4e12)
FOUNDRY = "llm-foundry benchmarks"
MEGATRON = "Korthikanti et al., table 5"
TITAN = "torchtitan benchmarks, compiled"
BRIDGE = "Megatron Bridge performance summary"


def _fsdp(gpus: int, tokens: int, recompute: Recompute) -> TrainLayout:
    return TrainLayout(dp=gpus, zero=3, recompute=recompute, micro_batch_tokens=tokens)


def _foundry(
    model: ModelSpec, gpu: Gpu, gpus: int, length: int, micro: int, sequences: int, again: bool, speed: float
) -> Published:
    layout = _fsdp(gpus, micro * length, "full" if again else "none")
    return Published(FOUNDRY, model, gpu, layout, sequences, length, speed)


def _megatron(model: ModelSpec, pp: int, sequences: int, seconds: float, recompute: Recompute) -> Published:
    layout = TrainLayout(tp=8, pp=pp, zero=0, recompute=recompute, micro_batch_tokens=2048 * (4 if pp == 1 else 1))
    return Published(MEGATRON, model, A100, layout, sequences, 2048, sequences * 2048 / seconds / (8 * pp))


CASES = (
    _foundry(MPT_7B, A100, 8, 2048, 6, 96, False, 4641),
    _foundry(MPT_7B, A100, 8, 8192, 8, 128, True, 3206),
    _foundry(MPT_7B, A100, 8, 32768, 2, 32, True, 1672),
    _foundry(MPT_13B, A100, 8, 2048, 2, 48, False, 2262),
    _foundry(MPT_30B, A100, 8, 2048, 3, 504, True, 916),
    _foundry(MPT_70B, A100, 64, 2048, 8, 2048, True, 410),
    _foundry(MPT_7B, H100, 8, 2048, 6, 48, False, 10643),
    _foundry(MPT_7B, H100, 8, 8192, 8, 128, True, 6935),
    _foundry(MPT_7B, H100, 8, 32768, 2, 32, True, 3318),
    _foundry(MPT_13B, H100, 8, 2048, 2, 16, False, 4792),
    _foundry(MPT_30B, H100, 8, 2048, 3, 504, True, 2002),
    _foundry(MPT_70B, H100, 64, 2048, 8, 2048, True, 1039),
    Published(TITAN, "llama-3.1-8b", H100_TITAN, _fsdp(8, 16384, "selective"), 16, 8192, 6667),
    Published(TITAN, "llama-3.1-8b", H100_TITAN, _fsdp(128, 16384, "selective"), 256, 8192, 6514),
    _megatron(GPT_22B, 1, 4, 1.42, "full"),
    _megatron(GPT_22B, 1, 4, 1.10, "selective"),
    _megatron(GPT_175B, 8, 64, 18.13, "full"),
    _megatron(GPT_175B, 8, 64, 13.75, "selective"),
    Published(
        "DeepSeek-V3 report (8 bits, DualPipe)",
        "deepseek-v3",
        find_gpu("h800"),
        TrainLayout(pp=16, dp=128, ep=64, recompute="full", micro_batch_tokens=4096, uneven_stages=True),
        15360,
        4096,
        1e12 / (180e3 * 3600),
        TrainSettings(old_log_probs=False, dispatcher="deepep", ep_overlap=1.0),
    ),
    Published(BRIDGE, "gpt-oss-120b", H100, TrainLayout(pp=4, dp=16, ep=8, micro_batch_tokens=4096), 1280, 4096, 5993),
)


STEPS = (
    WholeStep("qwen3-32b", TrainLayout(tp=4, pp=4, dp=2, recompute="full", micro_batch_tokens=4096), 3206, 393),
    WholeStep("qwen3-30b-a3b", TrainLayout(tp=2, dp=16, ep=8, recompute="full", micro_batch_tokens=4096), 3154, 225),
    WholeStep("llama-3.1-8b", TrainLayout(pp=2, dp=8, recompute="full", micro_batch_tokens=4096), 1060, 97.7),
)


def main(kept_up: float = KEPT_UP) -> None:
    """Print both tables."""
    print(f"{'model':13} {'gpu':8}{'layout':40} {'length':>6} {'published':>9} {'ours':>6} {'error':>7}  source")
    errors: dict[str, list[float]] = {}
    for case in CASES:
        ours = replace(case, settings=replace(case.settings, kept_up=kept_up)).ours()
        error = ours / case.speed - 1
        errors.setdefault(case.gpu.name, []).append(error)
        start = f"{case.name:13} {case.gpu.name:8}{case.layout!s:40} {case.length:6}"
        print(f"{start} {case.speed:9.0f} {ours:6.0f} {error:+7.1%}  {case.source}")
    for gpu, found in errors.items():
        print(f"{gpu}: mean error {np.mean(found):+.1%}, mean size {np.mean(np.abs(found)):.1%}")
    print("\nNeMo RL, GRPO on H100: seconds of a whole step, and of its training part here")
    for step in STEPS:
        print(f"{step.model:13} {step.layout!s:40} {step.seconds:6.1f} {step.ours():6.1f}")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
