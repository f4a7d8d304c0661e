"""The decision core: what a trajectory has left, where it should run, how GPUs are split. Pure."""
