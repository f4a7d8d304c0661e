"""Answers to sizing questions: capacity, search, sweeps, comparisons, advice."""
