"""Scripts that make tables of the documentation, goldens and measurements: `python -m tools.NAME`."""
