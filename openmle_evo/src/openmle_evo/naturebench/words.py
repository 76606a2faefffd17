"""A NatureBench task in the operators' prompts."""

from openmle_gym.bridges.naturebench import NatureTask
from openmle_gym.manifest import Columns, Manifest, Metric
from openmle_gym.preview import preview_data
from openmle_gym.prompts import PromptConfig, PublicTask

CONTRACT = """\
Reply with a short plan in plain words, then the whole program in one fenced Python block. The program is a single script
that will be run once, as it stands, in an empty folder and without a network:

* It reads its data from the folder named by the environment variable `DATA_DIR`.
* It writes what the task asks for into the folder named by the environment variable `OUTPUT_DIR`, under the names and in
  the formats that the task gives.
* It estimates its own score on data held out from training and prints it as one line: `Final Validation Score: <number>`.
* It learns from the data that it is given. It does not look for hidden answers, asks no other service, installs nothing,
  and does not hard-code predictions.

The score is the mean, over the task's instances, of the relative improvement over the published state of the art: 0
matches it, and what is above 0.1 surpasses it. An instance without usable outputs counts as -1."""


def public_nature_task(task: NatureTask, config: PromptConfig) -> PublicTask:
    """What prompts may say of a task: the statement, its instances with their metrics, and the files of its data."""
    manifest = Manifest(
        name=task.root.name,
        title=task.root.name,
        modality=("science",),
        metric=Metric(name="improvement over the state of the art", higher_is_better=True),
        columns=Columns(id=("instance",), target=("outputs",)),  # a manifest has some; prompts do not show them
    )
    metrics = [(entry.dataset_name, entry.primary) for entry in task.metadata.performance_entries]
    instances = [
        f"- {name}: {metric.name}, {'higher' if metric.sign > 0 else 'lower'} is better" for name, metric in metrics
    ]
    description = "\n\n".join([task.description, "Instances and the metric of each:", "\n".join(instances)])
    data = preview_data(task.problem_dir / "data", manifest.columns, listed=config.columns)
    return PublicTask(manifest=manifest, description=description, data=data, contract=CONTRACT)
