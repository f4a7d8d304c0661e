"""How a request, or a trajectory's next turn, finds its replica.

`Router` is the protocol of all routers that choose by load, session and prefix. Serving fleets use them as they are
(`route.serving`). Rollouts use the same ones turn by turn, beside routers of their own that look at the tokens which
trajectories are predicted to have left (`route.rollout`).
"""

from steelyard.balance.route.protocol import RoutedRequest, Router
from steelyard.balance.route.speed import BucketSpeed, Speeds

__all__ = ["BucketSpeed", "RoutedRequest", "Router", "Speeds"]
