"""Serving scenarios and results side by side: what differs, and which differences are real."""
