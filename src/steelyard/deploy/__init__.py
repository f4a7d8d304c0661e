"""Deployments: a scenario as commands and files that run its fleet, and such files read back into a scenario."""

from steelyard.deploy.emit import TARGETS, emit
from steelyard.deploy.imported import Imported, ImportOptions, scenario_yaml
from steelyard.deploy.parts import Deployment, Note
from steelyard.deploy.read import KINDS, read

__all__ = ["KINDS", "TARGETS", "Deployment", "ImportOptions", "Imported", "Note", "emit", "read", "scenario_yaml"]
