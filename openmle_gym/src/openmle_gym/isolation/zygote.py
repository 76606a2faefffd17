"""Runs a command in namespaces of its own, forked from a Python that has imported the usual libraries already."""

import asyncio
import json
import os
import platform
import weakref

from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation.disk import MOST_INODES
from openmle_gym.isolation.local import (
    Supervised,
    local_rlimits,
    require_linux,
    see_through,
    tasks_counted_already,
    unused_user,
)
from openmle_gym.isolation.runner import Isolation, RunResult, RunSpec
from openmle_gym.isolation.seccomp import bpf_filter, supported
from openmle_gym.isolation.view import (
    INPUTS_FOLDER,
    SHARED_MEMORY,
    TMP,
    WORK,
    Shown,
    memory_mounts,
    python_inside,
    write_user_files,
)
from openmle_gym.isolation.workspace import (
    Workspace,
    expanded,
    program_environment,
    prove,
    refuse_gpu,
    workspace,
)
from openmle_gym.isolation.zygote_pool import Parent, ParentGone, Pool
from openmle_gym.signature import PROGRAM_FILE

PRELOAD = (
    "numpy",
    "pandas",
    "pandas.io.formats.csvs",
    "scipy.stats",
    "sklearn.calibration",
    "sklearn.compose",
    "sklearn.decomposition",
    "sklearn.ensemble",
    "sklearn.feature_selection",
    "sklearn.impute",
    "sklearn.kernel_approximation",
    "sklearn.kernel_ridge",
    "sklearn.linear_model",
    "sklearn.metrics",
    "sklearn.model_selection",
    "sklearn.naive_bayes",
    "sklearn.neighbors",
    "sklearn.neural_network",
    "sklearn.pipeline",
    "sklearn.preprocessing",
    "sklearn.svm",
    "sklearn.tree",
    # What scikit-learn and pandas import at the first call of something.
    "narwhals.stable.v2._namespace",
    "narwhals._interchange.dataframe",
    "narwhals._pandas_like.dataframe",
    "narwhals._pandas_like.group_by",
    "narwhals._pandas_like.namespace",
    "narwhals._pandas_like.selectors",
)
"""What tabular programs import; what is not installed is passed over."""
_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "GLIBC_", "MALLOC_", "OMP_", "OPENBLAS_", "MKL_", "BLIS_")
"""Beginnings of variables that an interpreter and its libraries read once, so that a forked one has read them."""
_SCRIPTS = 4
"""Script names for which parents are kept; a program of another name starts cold."""


class ZygoteRunner:
    """As strong as bubblewrap, and many times as quick for short programs.

    Each job is forked from a parent process that has imported numpy, pandas and scikit-learn; it enters namespaces, a
    file system and limits of its own, and the interpreter goes on to run the script as if it had just started. That
    works for `PYTHON [-u] script.py ...`; every other command is executed in the same isolation, without the gain.
    Parents start when they are needed, serve a number of jobs, and die with this object or the thread that made them.

    What is covered: all that `BubblewrapRunner` covers, by the same view of the file system, namespaces, system call
    filter, limits and supervision. The parent has no secret, no input and no network; a job has no descriptor of it,
    and sees neither it nor other jobs. Global random seeds of `random` and numpy differ between jobs. If the parent
    dies, so do its jobs, as trouble of the machinery.

    What is not: what `BubblewrapRunner` does not cover (memory is watched, not counted by the kernel; the working
    directory is only watched where we are not root; CPU time is not divided), and terminals (no /dev/pts). Programs
    that one parent forks share its addresses and its string hash seed, which a running interpreter cannot change. Each
    parent has a random seed of its own, and they take turns: three jobs in a row always differ in the order of sets
    (one whose turn would break that starts cold), but not all jobs as they would cold. The parents start after `check`,
    or with the second job. The preloaded modules are in `sys.modules` from the start, their warning filters set, as
    after an `import` in the first line. /proc/self/cmdline lacks the script's arguments.
    """

    isolation = Isolation.ZYGOTE

    def __init__(self, *, preload: tuple[str, ...] = PRELOAD, parents: int = 4, jobs_per_parent: int = 200) -> None:
        """
        Args:
            preload: Modules to import before jobs come.
            parents: Processes to fork from, per script name; they differ in their hash seed.
            jobs_per_parent: A parent that has served so many, or up to a quarter less, is replaced.
        """
        self._preload = preload
        self._parents = parents
        self._jobs_per_parent = jobs_per_parent
        self._pools: dict[str, Pool] = {}
        weakref.finalize(self, _close_all, self._pools)

    async def check(self) -> None:
        """See `Runner`."""
        await prove(self)
        self._pools[PROGRAM_FILE].fill()

    async def run(self, spec: RunSpec) -> RunResult:
        """See `Runner`."""
        refuse_gpu(spec)
        require_linux()
        if not supported(platform.machine()):
            raise RunnerUnavailable(f"zygote: no system-call filter for {platform.machine()}; use Docker")
        uid = unused_user()
        python = python_inside()
        argv = tuple(expanded(word, python=python, inputs=INPUTS_FOLDER) for word in spec.argv)
        script = _script(argv, python, spec)
        if script not in self._pools and len(self._pools) >= _SCRIPTS:
            script = None
        async with workspace(spec, uid=uid) as place:
            job = await asyncio.to_thread(_job, spec, place, argv, uid, python)
            parent, supervised = await self._start(script, job, place)
            try:
                return await see_through(
                    supervised,
                    spec,
                    place,
                    isolation=self.isolation,
                    tmpfs=memory_mounts(place),
                    shared_with=parent.pid,
                )
            except RunnerUnavailable:
                parent.doubtful = True
                raise
            finally:
                parent.end_job()

    async def _start(self, script: str | None, job: dict[str, object], place: Workspace) -> tuple[Parent, Supervised]:
        """Has a parent start a job; a second one, if the first was found dead."""
        name = script or PROGRAM_FILE
        pool = self._pools.setdefault(name, Pool(name, self._preload, self._parents, self._jobs_per_parent))

        async def start() -> tuple[Parent, Supervised]:
            parent, fresh = await pool.parent()
            request = json.dumps(job | {"warm": script if fresh else None}).encode()
            return parent, await parent.start_job(request, place)

        try:
            return await start()
        except ParentGone:
            return await start()


def _script(argv: tuple[str, ...], python: str, spec: RunSpec) -> str | None:
    """The script that a command runs, where a forked interpreter can; else None."""
    words = argv[2:] if argv[1:2] == ("-u",) else argv[1:]
    if argv[0] != python or not words or words[0].startswith("-") or not words[0].endswith(".py"):
        return None
    return None if any(name.startswith(_READ_AT_START) for name in spec.environment) else words[0]


def _job(spec: RunSpec, place: Workspace, argv: tuple[str, ...], uid: int | None, python: str) -> dict[str, object]:
    """What the supervisor of a job has to know."""
    inputs = [Shown(str(source), f"{INPUTS_FOLDER}/{name}") for name, source in place.inputs.items()]
    environment = program_environment(spec, home=WORK, tmp=TMP, inputs=INPUTS_FOLDER, python=python)
    shared = min(spec.limits.memory_bytes // 2, spec.limits.disk_bytes)
    tasks = spec.limits.processes + 1 + tasks_counted_already()
    return {
        "argv": argv,
        "environment": environment,
        "threads": int(environment["OMP_NUM_THREADS"]),
        "work": None if place.watched_bytes is None else os.path.realpath(place.work),
        "shown": [(os.path.realpath(source), target) for source, target in (*inputs, *write_user_files(place, uid))],
        "tmpfs": {TMP: spec.limits.disk_bytes, SHARED_MEMORY: shared},
        "inodes": MOST_INODES,
        "uid": uid,
        "rlimits": {"CORE": 0, "FSIZE": spec.limits.disk_bytes} | local_rlimits(spec.limits, tasks=tasks),
        "filter": bpf_filter(platform.machine()).hex(),
        "log_bytes": spec.limits.log_bytes,
        "output_bytes": spec.limits.output_bytes,
    }


def _close_all(pools: dict[str, Pool]) -> None:
    for pool in pools.values():
        pool.close()
