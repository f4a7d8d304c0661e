"""The settings that shape an engine's decisions, under vLLM's names."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Limits:
    """All settings of the scheduler. ``blocks`` are usable ones (vLLM's count less one)."""

    blocks: int
    max_model_len: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    threshold_alone: bool = False  # it also holds for a request that is alone, as up to vLLM 0.30
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    priority: bool = False
    async_scheduling: bool = True
    reserve_full_prompt: bool = True
    watermark: float = 0.0
    speculative_tokens: int = 0
    lookahead: int = 0  # tokens beyond a step's own that need KV slots, since a draft model writes them ahead
    stages: int = 1  # pipeline stages: as many steps pass from one decode of a request to the next
    windows: tuple[int | None, ...] = (None,)  # one per KV-cache group of attention; None: full attention
    chunked: bool = False  # tokens attend to those since the last multiple of a window, not to the last ones
    states: int = 0  # blocks of recurrent state that each request holds
    drops_last_hit: bool = False  # the last block of a cached prefix is recomputed, for hidden states to draft from

    def __reduce__(self) -> tuple[Callable[..., Limits], tuple[object, ...]]:
        """Pickled as its values, as a compiled class has to say itself."""
        return Limits, tuple(getattr(self, each.name) for each in fields(self))

    @property
    def slides(self) -> bool:
        """Whether some layers have a sliding window."""
        return self.windows != (None,) and not self.states

    @property
    def room(self) -> int:
        """Tokens that fit in all blocks together, as planners count them: windows are not told apart."""
        return self.blocks // (len(self.windows) if self.states else 1) * self.block_size

    def most_blocks(self, window: int | None) -> int:
        """The most blocks of a request in a group: blocks outside a window are freed once steps have returned."""
        tokens = self.max_model_len
        if window is None:
            return -(-tokens // self.block_size)
        in_flight = (self.stages + self.async_scheduling) * self.max_num_batched_tokens
        if self.chunked:
            return -(-min(window + in_flight, tokens) // self.block_size)
        return -(-min(window - 1 + in_flight, tokens) // self.block_size) + 1

    def longest(self) -> int:
        """The most tokens, prompt and output together, that this engine can serve however they are divided."""
        return bisect_left(range(2, self.max_model_len + 1), True, key=lambda n: self.refusal(n - 1, 1) is not None) + 1

    def refusal(self, prompt: int, output: int) -> str | None:
        """Why this engine can never serve a request, or None if it can."""
        if prompt + 1 > self.max_model_len:
            return f"prompt of {prompt} tokens leaves no room in max_model_len {self.max_model_len}"
        if not self.enable_chunked_prefill and prompt > self.max_num_batched_tokens:
            return (
                f"prompt of {prompt} tokens exceeds max_num_batched_tokens {self.max_num_batched_tokens} "
                "and chunked prefill is off"
            )
        most = min(prompt + output - 1 + self.speculative_tokens + self.lookahead, self.max_model_len)
        tokens = -(-most // self.block_size)
        need = self.states + sum(min(tokens, self.most_blocks(window)) for window in self.windows)
        if need > self.blocks:
            return f"needs {need} KV blocks of {self.block_size} tokens; the engine has {self.blocks}"
        return None
