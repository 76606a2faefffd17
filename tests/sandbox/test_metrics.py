"""The figures as Prometheus reads them."""

from openmle_gym.jobs import JobState
from prometheus_client.parser import text_string_to_metric_families
from sandbox_service.metrics import render
from sandbox_service.records import Histogram, LaneFacts, QueueFacts, WorkerView

FACTS = QueueFacts(
    lanes=[
        LaneFacts("cpu", 1, queued=3, oldest_seconds=12.5, running=2),
        LaneFacts("gpu", 2, queued=0, oldest_seconds=0.0, running=1),
    ],
    states={JobState.QUEUED: 3, JobState.COMPLETED: 7},
    outcomes={"success": 5, "timeout": 2},
    workers=[
        WorkerView(worker_id="cpu-1", status="busy", job_id="a"),
        WorkerView(worker_id="cpu-2", status="idle", job_id=None),
        WorkerView(worker_id="gpu-1", status="lost", job_id=None, resource_class="gpu"),
        WorkerView(worker_id="gpu-2", status="busy", job_id="b", resource_class="gpu"),
    ],
    durations={"queue": Histogram(bounds=(0.5, 10.0), counts=(4, 2, 1), sum_seconds=42.5)},
    infrastructure_errors={"RunnerUnavailable": 6, 'a"b\\c\n': 1},
    artifact_bytes=2048,
    draining=True,
)


def samples(facts: QueueFacts) -> dict[tuple[str, ...], float]:
    """Every sample by its name and its labels' values, in the order of the labels' names."""
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(render(facts).decode())
        for sample in family.samples
    }


def test_every_figure_is_told_under_its_class() -> None:
    told = samples(FACTS)
    expected = {
        ("openmle_queued_jobs", "1", "cpu"): 3,
        ("openmle_queued_jobs", "2", "gpu"): 0,
        ("openmle_oldest_queued_seconds", "1", "cpu"): 12.5,
        ("openmle_running_jobs", "1", "cpu"): 2,
        ("openmle_running_jobs", "2", "gpu"): 1,
        ("openmle_jobs", "queued"): 3,
        ("openmle_jobs", "completed"): 7,
        ("openmle_completed_jobs", "success"): 5,
        ("openmle_completed_jobs", "timeout"): 2,
        ("openmle_slots", "cpu"): 2,
        ("openmle_slots_used", "cpu"): 1,
        ("openmle_slots", "gpu"): 1,
        ("openmle_slots_used", "gpu"): 1,
        ("openmle_lost_workers",): 1,
        ("openmle_artifact_bytes",): 2048,
        ("openmle_draining",): 1,
        ("openmle_infrastructure_errors_total", "RunnerUnavailable"): 6,
        ("openmle_infrastructure_errors_total", 'a"b\\c\n'): 1,
    }
    assert {name: told.get(name) for name in expected} == expected


def test_buckets_are_cumulative_and_end_without_a_bound() -> None:
    told = samples(FACTS)
    buckets = {name[1]: value for name, value in told.items() if name[0] == "openmle_job_seconds_bucket"}
    assert buckets == {"0.5": 4, "10.0": 6, "+Inf": 7}
    assert told["openmle_job_seconds_sum", "queue"] == 42.5
    assert told["openmle_job_seconds_count", "queue"] == 7


def test_the_process_is_told_too() -> None:
    assert samples(FACTS)["process_resident_memory_bytes",] > 1_000_000
