"""Record the flags that deployment targets accept, by asking their own parsers.

    python -m tools.record_flags vllm sglang verl slime=CHECKOUT ... > tests/data/deploy-flags.json

Each target must be importable, without a GPU: `pip install --no-deps` and what its parser imports are enough. slime
is read from a checkout: its own arguments, and those of Megatron in its scripts. The result is a contract for tests:
names only.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml


def _vllm() -> tuple[str, list[str]]:
    own = import_module("vllm.utils.argparse_utils")
    parser = import_module("vllm.entrypoints.common.cli_args").make_arg_parser(own.FlexibleArgumentParser())
    paired = [action.option_strings for action in parser._actions if isinstance(action, own.EnableDisableAction)]
    older = [f"--no-{name[2:]}" for names in paired for name in names if name.startswith(("--enable-", "--disable-"))]
    older = [name for name in older if not parser.parse_known_args([name])[1]]  # accepted, but not listed
    return version("vllm"), sorted({*_names(parser), *older})


def _vllm_router() -> tuple[str, list[str]]:
    parser = argparse.ArgumentParser()
    import_module("vllm_router.router_args").RouterArgs.add_cli_args(parser, use_router_prefix=False)
    return version("vllm-router"), _names(parser)


def _sglang() -> tuple[str, list[str]]:
    parser = argparse.ArgumentParser()
    import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    return version("sglang"), _names(parser)


def _sglang_router() -> tuple[str, list[str]]:
    parser = argparse.ArgumentParser()
    import_module("sglang_router.router_args").RouterArgs.add_cli_args(parser, use_router_prefix=False)
    return version("sglang-router"), _names(parser)


def _verl() -> tuple[str, list[str]]:
    """Keys of verl's configuration, as its own package composes them."""
    spec = find_spec("verl")  # which is not imported: that would need all of its dependencies
    assert spec is not None and spec.origin is not None
    root, keys = Path(spec.origin).parent, set[str]()
    for name in ("_generated_ppo_trainer.yaml", "_generated_ppo_megatron_trainer.yaml"):
        keys |= set(_paths(_config(root / "trainer" / "config" / name)))
    for stack in ("fully_async", "one_step_off"):
        folder = root / "experimental" / f"{stack}_policy" / "config"
        for name in (f"{stack}_ppo_trainer.yaml", f"{stack}_ppo_megatron_trainer.yaml"):
            keys |= set(_paths(_config(folder / name)))
    return version("verl"), sorted(keys)


def _slime(checkout: Path) -> tuple[str, list[str]]:
    own = (checkout / "slime" / "utils" / "arguments.py").read_text(encoding="utf-8")
    used = "".join(path.read_text(encoding="utf-8") for path in sorted((checkout / "scripts").rglob("*.sh")))
    names = {*re.findall(r'"(--[a-z0-9-]+)"', own), *re.findall(r"^\s+(--[a-z0-9-]+)", used, re.MULTILINE)}
    release = re.search(r'version="([^"]+)"', (checkout / "setup.py").read_text(encoding="utf-8"))
    assert release is not None
    return release[1], sorted(names)


def _config(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _paths(value: Any, prefix: str = "") -> list[str]:
    if not isinstance(value, dict):
        return []
    return [path for key, each in value.items() for path in (f"{prefix}{key}", *_paths(each, f"{prefix}{key}."))]


def _names(parser: argparse.ArgumentParser) -> list[str]:
    return sorted({name for action in parser._actions for name in action.option_strings if name.startswith("--")})


RECORDERS: dict[str, Callable[[], tuple[str, list[str]]]] = {
    "vllm": _vllm,
    "vllm-router": _vllm_router,
    "sglang": _sglang,
    "sglang-router": _sglang_router,
    "verl": _verl,
}


def main(targets: list[str]) -> None:
    """Print the flags of each target."""
    found = {}
    for target in targets or list(RECORDERS):
        name, _, checkout = target.partition("=")
        release, names = _slime(Path(checkout)) if name == "slime" else RECORDERS[name]()
        found[name] = {"version": release.partition("+")[0], "names": names}
    json.dump(found, sys.stdout, indent=0)
    print()


if __name__ == "__main__":
    main(sys.argv[1:])
