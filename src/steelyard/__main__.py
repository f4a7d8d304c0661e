"""``python -m steelyard``: the command line."""

from steelyard.cli import main

main()
