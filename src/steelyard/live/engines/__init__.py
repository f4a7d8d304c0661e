"""Serving engines as agents see them: one interface for several kinds, starting them, watching them, new weights."""
