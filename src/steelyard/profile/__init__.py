"""Measuring operators on a real GPU."""
