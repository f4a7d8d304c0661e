"""What fixed and autoscaled fleets would have cost for recorded traffic, and what they would have missed."""

from steelyard.search.advise.advice import AdviceRow, FleetAdvice
from steelyard.search.advise.judge import Judgement
from steelyard.search.advise.settings import POLICIES, AdviseSettings
from steelyard.search.advise.study import advise

__all__ = ["POLICIES", "AdviceRow", "AdviseSettings", "FleetAdvice", "Judgement", "advise"]
