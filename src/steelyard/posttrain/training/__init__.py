"""The training stage of RL post-training as a cost model: time and memory of a step from actual sequence lengths."""

from steelyard.posttrain.training.compile import TrainingJobs, compile_training
from steelyard.posttrain.training.cost import TrainingCost
from steelyard.posttrain.training.layout import TrainLayout
from steelyard.posttrain.training.memory import TrainingMemory, training_memory
from steelyard.posttrain.training.packing import Batches, Packing, pack
from steelyard.posttrain.training.result import TimeSplit, TrainingTime
from steelyard.posttrain.training.settings import TrainSettings

__all__ = [
    "Batches",
    "Packing",
    "TimeSplit",
    "TrainLayout",
    "TrainSettings",
    "TrainingCost",
    "TrainingJobs",
    "TrainingMemory",
    "TrainingTime",
    "compile_training",
    "pack",
    "training_memory",
]
