"""A data-parallel training group on torch, which hybrid lanes join and leave between steps."""
