"""`openmle-erl sft-data`: collect, build, audit."""

import argparse
import asyncio
import dataclasses
import logging
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from openmle_gym.configuration import describe_config, load_config
from openmle_gym.console import print_json, run_command
from openmle_gym.errors import InfrastructureError
from openmle_gym.evaluate import JobSettings
from openmle_gym.experience import ExperienceCard
from openmle_gym.policies.settings import PolicyConfig, open_policy
from openmle_gym.prompts import public_task
from openmle_gym.task import TaskPackage

from openmle_erl import __version__
from openmle_erl.sft.acceptance import TaskFacts, check_reachable, read_references, task_facts
from openmle_erl.sft.audit import audit_file
from openmle_erl.sft.build import build_corpus
from openmle_erl.sft.collect import Collector, CollectTask, TaskReport
from openmle_erl.sft.collection import Collection, CollectionManifest
from openmle_erl.sft.config import CONFIGS, AuditConfig, BuildConfig, CollectConfig
from openmle_erl.sft.endpoints import SUBMIT_KEY_VARIABLE, limits_of, open_place
from openmle_erl.sft.files import find_packages
from openmle_erl.sft.stopping import Budget
from openmle_erl.sft.tokens import load_tokenizer

log = logging.getLogger("openmle_erl")


def sft_data(arguments: Sequence[str]) -> int:
    """The command, without its first word."""
    options = _parser().parse_args(arguments)
    return run_command(lambda: options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="openmle-erl sft-data", description=__doc__)
    stages = parser.add_subparsers(required=True, metavar="STAGE")
    collect = _stage(
        stages, "collect", "sample Drafts in parallel until each task has enough that are accepted", _collect
    )
    collect.epilog = "\n".join(
        [
            "settings (key=value):",
            describe_config(CollectConfig),
            "",
            f"policy=PROFILE, one of: {_profiles('policy')}; its settings (policy.key=value):",
            describe_config(PolicyConfig),
            "",
            f"profile=paper_collect sets the published values. The sandbox service's key: {SUBMIT_KEY_VARIABLE}.",
        ]
    )
    build = _stage(stages, "build", "build a corpus from collections and search runs", _build)
    build.epilog = (
        f"settings (key=value):\n{describe_config(BuildConfig)}\n\nprofile=paper_build sets the published values."
    )
    audit = _stage(stages, "audit", "read a corpus in JSON lines or Parquet, and say what is in it", _audit)
    audit.add_argument("file", type=Path, metavar="FILE")
    audit.epilog = f"settings (key=value):\n{describe_config(AuditConfig)}\n\nExits with 1 when a row has a problem, or there is no row."
    for stage in (collect, build, audit):
        stage.add_argument("overrides", nargs="*", metavar="key=value", help="settings; see below")
    return parser


def _stage(
    stages: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    summary: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser = stages.add_parser(
        name, help=summary, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    return parser


def _profiles(group: str) -> str:
    return ", ".join(sorted(path.stem for path in (CONFIGS / group).glob("*.yaml")))


def _collect(options: argparse.Namespace) -> int:
    config = load_config(CollectConfig, "sft_data_collect", configs=CONFIGS, overrides=options.overrides)
    return asyncio.run(_sample(config))


async def _sample(config: CollectConfig) -> int:
    packages = find_packages(config.tasks, setting="tasks")
    references = read_references(Path(config.acceptance.references) if config.acceptance.references else None)
    tasks = [_collect_task(package, config, task_facts(package, references)) for package in packages]
    check_reachable([task.facts for task in tasks], config.acceptance)
    tokenizer = load_tokenizer(Path(config.filters.tokenizer)) if config.filters.tokenizer else None
    async with open_place(config, packages) as place, open_policy(config.policy, CONFIGS / "policy") as policy:
        collection = Collection.open(Path(config.out), _manifest(config, place.isolation))
        try:
            collector = Collector(
                collection=collection,
                policy=policy,
                executor=place.executor,
                limits=limits_of(config),
                acceptance=config.acceptance,
                filters=config.filters,
                prompt=config.prompt,
                tokenizer=tokenizer,
                seed=config.seed,
                workers=config.workers,
                on_card=_log_card,
            )
            reports = await collector.run(tasks)
        except (asyncio.CancelledError, InfrastructureError):
            log.warning("stopped; nothing is lost: the same command goes on with %s", config.out)
            raise
        finally:
            collection.close()
    print_json(_summary(config.out, reports))
    if any(report.trouble for report in reports):
        log.warning("some tasks had trouble; the same command goes on with %s", config.out)
        return InfrastructureError.exit_code
    return 0


def _collect_task(package: TaskPackage, config: CollectConfig, facts: TaskFacts) -> CollectTask:
    quota = config.quota
    if config.quota_with_leaderboard is not None and facts.leaderboard is not None:
        quota = config.quota_with_leaderboard
    return CollectTask(
        public=public_task(package, config.prompt),
        facts=facts,
        job=JobSettings(
            data_dir=str(package.root),
            timeout_seconds=config.timeout_seconds,
            resource_type=package.manifest.compute,
        ),
        budget=Budget(batch=config.batch, quota=quota, limit=config.limit),
    )


def _manifest(config: CollectConfig, isolation: str) -> CollectionManifest:
    settings = dataclasses.asdict(config)
    settings["tasks"] = [str(Path(place).resolve()) for place in config.tasks]
    return CollectionManifest(
        collection_id=uuid.uuid4().hex[:8],
        created_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        openmle_version=__version__,
        policy=config.policy.model or config.policy.kind,
        isolation=isolation,
        settings=settings,
    )


def _log_card(card: ExperienceCard) -> None:
    score = f"validation {card.validation.value:.6g}" if card.validation else str(card.outcome)
    log.info("%s, attempt %d: %s", card.task, card.attempt, score)


def _summary(out: str, reports: Sequence[TaskReport]) -> dict[str, object]:
    return {
        "out": out,
        "attempts": sum(report.attempts for report in reports),
        "accepted": sum(report.accepted for report in reports),
        "tasks": [report._asdict() for report in reports],
    }


def _build(options: argparse.Namespace) -> int:
    config = load_config(BuildConfig, "sft_data_build", configs=CONFIGS, overrides=options.overrides)
    manifest, judge = asyncio.run(build_corpus(config))
    print_json(
        {
            "out": config.out,
            "examples": manifest.examples,
            "tokens": manifest.tokens,
            "counts": {source: counts.model_dump() for source, counts in manifest.counts.items()},
            "near_duplicates": manifest.near_duplicates,
            "judge": judge._asdict() | {"usage": judge.usage.model_dump()} if judge is not None else None,
        }
    )
    return 0 if manifest.examples else 1


def _audit(options: argparse.Namespace) -> int:
    config = load_config(AuditConfig, "sft_data_audit", configs=CONFIGS, overrides=options.overrides)
    report = audit_file(options.file, config)
    print_json(report)
    return 1 if report["problems"] or not report["rows"] else 0
