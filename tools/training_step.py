"""Times one training step of small models on a GPU: `python tools/training_step.py` (needs torch with CUDA).

Eight layers of Llama-3.1-8B and of Qwen3-30B-A3B with their heads, forward and backward, for seconds, so that the GPU
is at its power limit. `docs/training.md` compares the times of an H200 with predictions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

LAYERS = 8
LOSS_ROWS = 4096
ATTENTION = {"FlashAttention-2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
ALIGNED = 16  # an expert's rows are padded to multiples of this, as grouped gradients need


@dataclass(frozen=True)
class Shape:
    """A model's sizes; without experts every token uses one block of width ``wide``."""

    hidden: int
    wide: int
    heads: int
    kv_heads: int
    dim: int
    vocab: int
    experts: int = 0
    top_k: int = 0


MODELS = {
    "Llama-3.1-8B": Shape(4096, 14336, 32, 8, 128, 128256),
    "Qwen3-30B-A3B": Shape(2048, 768, 32, 4, 128, 151936, 128, 8),
}


class FeedForward(nn.Module):
    """Gated."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.hidden, 2 * shape.wide, bias=False)
        self.down = nn.Linear(shape.wide, shape.hidden, bias=False)

    def forward(self, x: Any) -> Any:
        gate, up = self.up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Dispatched(torch.autograd.Function):
    """Rows sorted by expert, with zeros as padding. A gradient is the sum of its row's copies, so that no two threads
    add to one place."""

    @staticmethod
    def forward(ctx: Any, rows: Any, tokens: Any, places: Any) -> Any:
        ctx.save_for_backward(places)
        return F.pad(rows, (0, 0, 0, 1))[tokens]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (places,) = ctx.saved_tensors
        return grad[places].sum(1), None, None


class Gathered(torch.autograd.Function):
    """The result of each row's copies."""

    @staticmethod
    def forward(ctx: Any, found: Any, copies: Any, places: Any) -> Any:
        ctx.save_for_backward(copies)
        return found[places]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (copies,) = ctx.saved_tensors
        return grad.flatten(0, 1)[copies.clamp(max=grad.shape[0] * grad.shape[1] - 1)], None, None


class Experts(nn.Module):
    """The same for every expert, on tokens sorted by expert, without synchronising with the host."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.top_k, self.count = shape.top_k, shape.experts
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.up = nn.Parameter(torch.randn(shape.experts, shape.hidden, 2 * shape.wide) * shape.hidden**-0.5)
        self.down = nn.Parameter(torch.randn(shape.experts, shape.wide, shape.hidden) * shape.wide**-0.5)

    def forward(self, x: Any) -> Any:
        rows = x.reshape(-1, x.shape[-1])
        weights, chosen = self.router(rows).float().softmax(-1).topk(self.top_k, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(rows.dtype)
        copies, places, offsets = self._dealt(chosen)
        inputs = Dispatched.apply(rows, copies // self.top_k, places)
        gate, up = F.grouped_mm(inputs, self.up, offs=offsets).chunk(2, -1)
        found = F.grouped_mm(F.silu(gate) * up, self.down, offs=offsets)
        return (weights[:, None] @ Gathered.apply(found, copies, places)).view_as(x)

    def _dealt(self, chosen: Any) -> tuple[Any, Any, Any]:
        """The copy at each place (or none), the place of each copy, and the end of each expert's places."""
        order = chosen.reshape(-1).argsort(stable=True)
        counts = torch.zeros(self.count, dtype=torch.long).scatter_add_(0, chosen.reshape(-1), torch.ones_like(order))
        padded = (counts + ALIGNED - 1) // ALIGNED * ALIGNED
        ends = padded.cumsum(0)
        shift = (ends - padded) - (counts.cumsum(0) - counts)  # of an expert's rows by the padding of earlier experts
        place = torch.arange(len(order)) + shift[chosen.reshape(-1)[order]]
        copies = torch.full((len(order) + self.count * ALIGNED,), len(order)).index_copy_(0, place, order)
        places = torch.empty_like(order).index_copy_(0, order, place)
        return copies, places.view_as(chosen), ends.to(torch.int32)


class Layer(nn.Module):
    """Norm, attention, norm, feed-forward."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.norms = nn.ModuleList(nn.RMSNorm(shape.hidden) for _ in range(2))
        self.qkv = nn.Linear(shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.dim, bias=False)
        self.out = nn.Linear(shape.heads * shape.dim, shape.hidden, bias=False)
        self.ffn = Experts(shape) if shape.experts else FeedForward(shape)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        (count, length, _), shape = x.shape, self.shape
        parts = self.qkv(self.norms[0](x)).view(count, length, -1, shape.dim).transpose(1, 2)
        q, k, v = parts.split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)

        def turned(each: Any) -> Any:
            low, high = each.chunk(2, -1)
            return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

        heads = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(heads.transpose(1, 2).reshape(count, length, shape.heads * shape.dim))
        return x + self.ffn(self.norms[1](x))


class Model(nn.Module):
    """The loss of sequences, with logits computed some rows at a time."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, ids: Any) -> Any:
        half = torch.arange(self.shape.dim // 2).float() / (self.shape.dim // 2)
        angles = torch.outer(torch.arange(ids.shape[1]).float(), 10000.0**-half)
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        rows, targets = self.norm(x).reshape(-1, self.shape.hidden), ids.roll(-1, 1).reshape(-1)
        parts = zip(rows.split(LOSS_ROWS), targets.split(LOSS_ROWS), strict=True)
        return sum(F.cross_entropy(self.head(each).float(), wanted, reduction="sum") for each, wanted in parts)


def seconds(run: Callable[[], object], for_seconds: float = 5.0) -> float:
    """Seconds of one call, when called repeatedly."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < for_seconds:
        run()
        torch.cuda.synchronize()
        calls += 1
    return (time.perf_counter() - began) / calls


def time_model(name: str, shape: Shape) -> None:
    """Print milliseconds of a forward pass and of forward and backward together."""
    model = Model(shape)
    for count, length in ((4, 2048), (1, 8192), (1, 16384)):
        ids = torch.randint(0, shape.vocab, (count, length))

        def forward(ids: Any = ids) -> None:
            with torch.no_grad():
                model(ids)

        def both(ids: Any = ids) -> None:
            model(ids).backward()
            model.zero_grad(set_to_none=True)

        for kernel, backend in ATTENTION.items():
            with sdpa_kernel(backend):
                there, all_of_it = seconds(forward) * 1e3, seconds(both) * 1e3
                print(f"{name}, {count} x {length}, {kernel}: {there:.1f}, {all_of_it:.1f} ms", flush=True)


def main() -> None:
    """All models."""
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda")
    for name, shape in MODELS.items():
        time_model(name, shape)


if __name__ == "__main__":
    main()
