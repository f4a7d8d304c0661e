"""The RL loop: rollout stage, training stage, weight sync, staleness, drift.

>>> from steelyard import load_posttrain
>>> from steelyard.posttrain import plan, posttrain
>>> print(posttrain(load_posttrain("posttrain.yaml")).summary["tokens_per_second"])
"""

from typing import TYPE_CHECKING

from steelyard.lazy import lazily

if TYPE_CHECKING:
    from steelyard.posttrain.advice import Advice, plan
    from steelyard.posttrain.result import PosttrainResult
    from steelyard.posttrain.run import posttrain

__all__ = ["Advice", "PosttrainResult", "plan", "posttrain"]

__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(("Advice", "plan"), "steelyard.posttrain.advice"),
        "PosttrainResult": "steelyard.posttrain.result",
        "posttrain": "steelyard.posttrain.run",
    },
)
