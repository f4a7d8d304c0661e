"""Writes the shipped profiles by column, as runs read them: ``python -m tools.index_bundle``.

Run it whenever a file of `src/steelyard/cost/bundles` has changed; a test compares the two.
"""

from __future__ import annotations

from steelyard.cost.bundle import FOLDER, index_bundle, read_bundle


def main() -> None:
    """Every profile."""
    for source in sorted(FOLDER.glob("*.jsonl.gz")):
        index_bundle(read_bundle(source), source.with_name(source.name.replace(".jsonl.gz", ".npz")))


if __name__ == "__main__":
    main()
