"""Standard competition metrics, each with its direction and bounds, and the `metric.py` that carries one."""

from openmle_gym.metrics.library import METRICS, MetricSpec
from openmle_gym.metrics.module import render_metric_module

__all__ = ["METRICS", "MetricSpec", "render_metric_module"]
