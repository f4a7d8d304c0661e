"""A post-training cluster without a GPU: emulated engines, agents that play trajectories, a trainer that only waits.

What they do follows from a scenario, as in `posttrain`. When they do it, the controller decides.
"""
