"""The service's figures in Prometheus's text format."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from sandbox_service import __version__
from sandbox_service.records import Histogram, QueueFacts

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


def render(facts: QueueFacts) -> bytes:
    """All metrics of one moment, with those of this process (memory, open files, CPU time)."""
    registry = CollectorRegistry()
    registry.register(_FactsCollector(facts))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _FactsCollector(Collector):
    def __init__(self, facts: QueueFacts) -> None:
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        facts = self._facts
        yield InfoMetricFamily("openmle_service", "The service.", {"version": __version__})
        yield _gauge("openmle_draining", "1 from the order to stop on.", (), [((), float(facts.draining))])
        lanes = [((lane.resource_class, str(lane.priority)), lane) for lane in facts.lanes]
        by_class = ("resource_class", "priority")
        yield _gauge(
            "openmle_queued_jobs", "Jobs that wait.", by_class, [(labels, lane.queued) for labels, lane in lanes]
        )
        yield _gauge(
            "openmle_oldest_queued_seconds",
            "For how long the oldest job has waited.",
            by_class,
            [(labels, lane.oldest_seconds) for labels, lane in lanes],
        )
        yield _gauge(
            "openmle_running_jobs", "Jobs that run.", by_class, [(labels, lane.running) for labels, lane in lanes]
        )
        yield _gauge(
            "openmle_jobs", "Jobs on record.", ("state",), [((state,), count) for state, count in facts.states.items()]
        )
        yield _gauge(
            "openmle_completed_jobs",
            "Completed jobs on record, by how the program ended.",
            ("outcome",),
            [((outcome,), count) for outcome, count in facts.outcomes.items()],
        )
        slots = facts.slots().items()
        yield _gauge(
            "openmle_slots", "Jobs that can run at once.", ("resource_class",), [((name,), n) for name, (_, n) in slots]
        )
        yield _gauge(
            "openmle_slots_used", "Slots in use.", ("resource_class",), [((name,), used) for name, (used, _) in slots]
        )
        lost = sum(worker.status == "lost" for worker in facts.workers)
        yield _gauge("openmle_lost_workers", "Workers that take no job.", (), [((), lost)])
        yield _gauge("openmle_artifact_bytes", "Kept files of programs.", (), [((), facts.artifact_bytes)])
        yield _durations(facts)
        errors = CounterMetricFamily(
            "openmle_infrastructure_errors",
            "Attempts that machinery failed under, since the start.",
            labels=("error",),
        )
        for name, count in facts.infrastructure_errors.items():
            errors.add_metric((name,), count)
        yield errors


def _gauge(
    name: str, documentation: str, labels: tuple[str, ...], samples: list[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, documentation, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _durations(facts: QueueFacts) -> HistogramMetricFamily:
    family = HistogramMetricFamily(
        "openmle_job_seconds", "How long jobs waited, ran and were graded, since the start.", labels=("part",)
    )
    for part, histogram in facts.durations.items():
        family.add_metric((part,), _buckets(histogram), histogram.sum_seconds)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts by upper bound, as Prometheus has them."""
    bounds = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
