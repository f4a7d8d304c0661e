"""Policies that decide how many replicas a pool should have, from what has been observed so far."""

from steelyard.balance.scaling.ahead import Ahead, AheadSettings, ExpectedRequests, PoolTrial
from steelyard.balance.scaling.history import SeenRequest, TrafficHistory
from steelyard.balance.scaling.hpa import Hpa, HpaSettings
from steelyard.balance.scaling.predictive import Predictive, PredictiveSettings, ReplicaProfile

__all__ = [
    "Ahead",
    "AheadSettings",
    "ExpectedRequests",
    "Hpa",
    "HpaSettings",
    "PoolTrial",
    "Predictive",
    "PredictiveSettings",
    "ReplicaProfile",
    "SeenRequest",
    "TrafficHistory",
]
