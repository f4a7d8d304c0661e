"""The RL loop: rollout stage, training stage, weight sync, staleness, drift."""
