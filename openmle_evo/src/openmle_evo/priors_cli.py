"""`openmle-evo distill`."""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from openmle_gym.console import print_json
from openmle_gym.policies.settings import open_policy, read_profile

from openmle_evo.policy import PROFILES
from openmle_evo.priors import SKILL_LENGTH, distill, read_artefact, rewrite, write_skills
from openmle_evo.skills import Skill


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command."""
    command = commands.add_parser(
        "distill",
        help="turn runs on other tasks into skills: openmle-evo distill RUN ... --out FOLDER",
        description="Turns finished runs, and public write-ups of other tasks, into skill files for skills=FOLDER.",
    )
    command.add_argument(
        "sources", nargs="+", type=Path, metavar="SOURCE", help="a run's folder, or a .md or .py with a front matter"
    )
    command.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the skill files go")
    command.add_argument("--packages", type=Path, metavar="FOLDER", help="where the runs' task packages are now")
    command.add_argument("--pool", action="store_true", help="one skill of each kind of task, not of each task")
    command.add_argument("--model", metavar="PROFILE", help="have a policy profile word the skills anew")
    command.add_argument("--length", type=int, default=SKILL_LENGTH, help="characters that the model may take")
    command.set_defaults(run=_distill)


def _distill(options: argparse.Namespace) -> int:
    artefacts = [path for path in options.sources if path.is_file()]
    runs = [path for path in options.sources if not path.is_file()]
    skills = distill(runs, packages=options.packages, pool=options.pool) + [read_artefact(path) for path in artefacts]
    if options.model:
        skills = asyncio.run(_rewritten(skills, options.model, options.length))
    paths = write_skills(skills, options.out)
    print_json({"skills": [str(path) for path in paths], "sources": {each.name: each.tasks for each in skills}})
    return 0


async def _rewritten(skills: Sequence[Skill], profile: str, length: int) -> list[Skill]:
    async with open_policy(read_profile(PROFILES, profile, "--model"), PROFILES) as model:
        return [await rewrite(skill, model, length=length) for skill in skills]
