"""Checks of task packages: what is wrong with one, by name, with evidence."""

from openmle_gym.check.finding import Finding, Report
from openmle_gym.check.run import check_package

__all__ = ["Finding", "Report", "check_package"]
