"""Time one training step of a small Llama on a GPU: `python tools/training_step.py` (needs torch with CUDA).

Eight layers of Llama-3.1-8B with its head, forward and backward, kept up for seconds so that the GPU is at its power
limit. `docs/training.md` has what an H200 took beside what the training stage expects.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

HIDDEN, WIDE, HEADS, KV_HEADS, DIM, VOCAB, LAYERS = 4096, 14336, 32, 8, 128, 128256, 8
LOSS_ROWS = 4096
ATTENTION = {"FlashAttention-2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


class Layer(nn.Module):
    """Norm, attention, norm, gated feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM, bias=False)
        self.out = nn.Linear(HEADS * DIM, HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, 2 * WIDE, bias=False)
        self.down = nn.Linear(WIDE, HIDDEN, bias=False)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        count, length, _ = x.shape
        parts = self.qkv(self.norms[0](x)).view(count, length, -1, DIM).transpose(1, 2)
        q, k, v = parts.split((HEADS, KV_HEADS, KV_HEADS), dim=1)

        def turned(each: Any) -> Any:
            low, high = each.chunk(2, -1)
            return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

        heads = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(heads.transpose(1, 2).reshape(count, length, HEADS * DIM))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    """The loss of sequences, its logits taken some rows at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, ids: Any) -> Any:
        half = torch.arange(DIM // 2).float() / (DIM // 2)
        angles = torch.outer(torch.arange(ids.shape[1]).float(), 10000.0**-half)
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        rows, targets = self.norm(x).reshape(-1, HIDDEN), ids.roll(-1, 1).reshape(-1)
        parts = zip(rows.split(LOSS_ROWS), targets.split(LOSS_ROWS), strict=True)
        return sum(F.cross_entropy(self.head(each).float(), wanted, reduction="sum") for each, wanted in parts)


def seconds(run: Callable[[], object], for_seconds: float = 5.0) -> float:
    """One call, when called again and again."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < for_seconds:
        run()
        torch.cuda.synchronize()
        calls += 1
    return (time.perf_counter() - began) / calls


def main() -> None:
    """Print milliseconds of a forward pass and of forward and backward together."""
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda")
    model = Llama()
    for count, length in ((4, 2048), (1, 8192), (1, 16384)):
        ids = torch.randint(0, VOCAB, (count, length))

        def forward(ids: Any = ids) -> None:
            with torch.no_grad():
                model(ids)

        def both(ids: Any = ids) -> None:
            model(ids).backward()
            model.zero_grad(set_to_none=True)

        for name, kernel in ATTENTION.items():
            with sdpa_kernel(kernel):
                print(f"{count} x {length} {name}: {seconds(forward) * 1e3:.1f}, {seconds(both) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
