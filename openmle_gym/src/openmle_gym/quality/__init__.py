"""The semantic judge of a task package, after the mechanical checks and never before them."""

from openmle_gym.quality.assess import Assessment, assess_package
from openmle_gym.quality.rules import DIMENSIONS, LegacyVerdict, Recommendation, StrictVerdict, legacy, strict

__all__ = [
    "DIMENSIONS",
    "Assessment",
    "LegacyVerdict",
    "Recommendation",
    "StrictVerdict",
    "assess_package",
    "legacy",
    "strict",
]
