"""Emulated engines: the simulation of an engine behind vLLM's HTTP interface, in real time or faster."""
