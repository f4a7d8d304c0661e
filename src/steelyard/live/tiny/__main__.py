"""``python -m steelyard.live.tiny MODEL_FOLDER``: serve a model with the small engine."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from steelyard.errors import UserError
from steelyard.live.tiny.engine import TinyEngine
from steelyard.live.tiny.serve import serve_tiny


def main(words: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser("python -m steelyard.live.tiny", description=__doc__)
    parser.add_argument("folder", type=Path, help="a Hugging Face style folder of a model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 chooses a free one")
    parser.add_argument("--name", help="of the model, as clients ask for it; the folder unless it is given")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--most", type=int, default=64, help="requests in a batch")
    parser.add_argument("--threads", type=int, default=1, help="of torch; 0 leaves that to torch")
    given = parser.parse_args(words)
    if given.threads:
        torch.set_num_threads(given.threads)
    try:
        asyncio.run(_serve(given))
    except UserError as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


async def _serve(given: argparse.Namespace) -> None:
    engine = TinyEngine(given.folder, given.name, given.device, given.most)
    await serve_tiny(engine, given.host, given.port, lambda port: print(port, flush=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
