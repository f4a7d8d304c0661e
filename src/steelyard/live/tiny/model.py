"""The tiny model: a Qwen3 of 300,000 parameters over 64 symbols, which vLLM can load, too."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch.nn import Module
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from steelyard.files.folder import result_folder
from steelyard.files.writing import written_text
from steelyard.live.tiny.symbols import EOS, MARKS, PAD, PATTERN, SYMBOLS, encode, token
from steelyard.live.tiny.task import demonstration
from steelyard.live.train.weights import CONFIG, MODEL, model_of, named, write_model

WARM_UP = 200
"""Steps of supervised training before GRPO, without which the policy would never be right by chance."""

# Chosen so that the mean reward is about 0.4 after the warm-up, which leaves most to GRPO.
_NOISE = 0.15
_RATE = 4e-3
_BATCH = 16
_RAMP = 30  # steps in which the learning rate rises

_THETA = 1000.0  # of rotary positions; with 10,000 it learns to copy more slowly
_SEED = 1_000_003  # of prompts that are demonstrated: not those of training
_TOKENIZER, _TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"


def tiny_config(tied: bool = True) -> dict[str, Any]:
    """Its config.json. Heads have 64 dimensions, which all attention kernels know. ``tied``: its output layer has the
    weights of its embedding."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": len(SYMBOLS),
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 512,
        "rope_theta": _THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": _THETA},
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "initializer_range": 0.02,
        "pad_token_id": token(PAD),
        "eos_token_id": token(EOS),
        "bos_token_id": None,
    }


def make_tiny(folder: Path, seed: int = 0, warm_up: int = WARM_UP, tied: bool = True) -> Path:
    """Make a model of the calculator task and write it as a Hugging Face style folder, with its tokenizer."""
    config = tiny_config(tied)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # its tensors are so small that more of them only wait for each other
    try:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            model = model_of(config)
            _warm_up(model, seed, warm_up)
    finally:
        torch.set_num_threads(threads)
    with result_folder(folder, names=(MODEL, _TOKENIZER, _TOKENIZER_CONFIG, CONFIG)) as stage:
        write_model(stage, config, named(model))
        with written_text(stage / _TOKENIZER) as file:
            file.write(tokenizer().to_str())
        with written_text(stage / _TOKENIZER_CONFIG) as file:
            about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "pad_token": PAD}
            json.dump({**about, "clean_up_tokenization_spaces": False, "model_max_length": 512}, file)
    return folder


def tokenizer() -> Tokenizer:
    """The vocabulary as the tokenizers library has it. Encodes and decodes as `symbols` does."""
    found = Tokenizer(WordLevel({symbol: place for place, symbol in enumerate(SYMBOLS)}, unk_token="?"))
    found.pre_tokenizer = Split(Regex(PATTERN), "isolated")
    found.decoder = Fuse()
    found.add_special_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    return found


def _warm_up(model: Module, seed: int, steps: int) -> None:
    """Imitate a tutor who makes mistakes."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=0.0)
    draw = Random(seed)
    for step in range(steps):
        rows = [
            demonstration(draw, _SEED, seed * steps * _BATCH + step * _BATCH + place, _NOISE) for place in range(_BATCH)
        ]
        ids = pad_sequence([torch.tensor(encode("".join(row))) for row in rows], batch_first=True)
        wanted = pad_sequence([torch.tensor(_marked(row)) for row in rows], batch_first=True)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        losses = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss = (losses * wanted[:, 1:].flatten()).sum() / wanted.sum()
        optimizer.zero_grad()
        torch.autograd.backward([loss])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1.0, (step + 1) / _RAMP)
        optimizer.step()


def _marked(row: tuple[str, str, str, str]) -> list[int]:
    """1 for each token that the policy is to write: its call and its answer."""
    return [own for part, own in zip(row, (0, 1, 0, 1), strict=True) for _ in encode(part)]
