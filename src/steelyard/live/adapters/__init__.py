"""Steelyard's routing inside other post-training stacks: verl, slime, SkyRL, AReaL, prime-rl."""
