"""A small engine, model and task on torch, so that the whole system runs on a CPU, without vLLM."""
