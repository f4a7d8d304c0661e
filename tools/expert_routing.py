"""Whether captures of experts show signs of uneven routing: `python tools/expert_routing.py CAPTURE_DIR...`

For each run of a capture whose model has routed experts: how the capture says they were routed, and where decode steps
come nearest to the time in which the GPU can read the experts that evenly routed tokens need. Below it, tokens chose
fewer.
"""

from __future__ import annotations

import sys
from pathlib import Path

from steelyard.hardware import find_gpu
from steelyard.model import load_model
from steelyard.validate.capture import read_capture_folder
from steelyard.validate.expert_routing import readings, recorded_routing
from steelyard.validate.settings import gpu_of
from steelyard.validate.steps import read_steps


def main(folders: list[Path]) -> None:
    """Print the table."""
    print("| run | recorded routing | decodes | such steps | ms | ms to read the experts | times as long |")
    print("| --- | --- | --: | --: | --: | --: | --: |")
    for folder in folders:
        capture = read_capture_folder(folder)
        model, gpu = load_model("config.json", base_dir=folder), find_gpu(gpu_of(capture, None))
        for run in capture.runs:
            found = list(readings(model, read_steps(run.stepped), gpu, 1))
            if found:
                nearest = min(found, key=lambda each: each.seconds / each.least)
                cells = [f"{nearest.seconds * 1e3:.1f}", f"{nearest.least * 1e3:.1f}"]
                cells = [str(nearest.decodes), str(nearest.steps), *cells, f"{nearest.seconds / nearest.least:.2f}"]
                print(f"| {folder.name}/{run.name} | {recorded_routing(capture)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
