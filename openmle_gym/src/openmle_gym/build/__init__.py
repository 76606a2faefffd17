"""Making task packages out of raw data: a Kaggle competition, a Kaggle data set, a folder or a file."""

from openmle_gym.build.pipeline import build_package
from openmle_gym.build.request import BuildReport, BuildRequest, BuiltTask
from openmle_gym.build.source import Source, parse_source

__all__ = ["BuildReport", "BuildRequest", "BuiltTask", "Source", "build_package", "parse_source"]
