"""The sentences of `live/explain.py`, by what they are about."""
