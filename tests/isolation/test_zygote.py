"""What the forking runner promises beyond the contract: a program cannot tell it from a cold start, nor reach past it."""

import asyncio
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation.bubblewrap import BubblewrapRunner
from openmle_gym.isolation.runner import PYTHON, Runner, RunResult, RunSpec
from openmle_gym.isolation.zygote import ZygoteRunner
from openmle_gym.jobs import MIB, Limits

SCRIPT = "program.py"


def spec_of(source: str, *arguments: str, script: str = SCRIPT, limits: Limits | None = None) -> RunSpec:
    return RunSpec(argv=(PYTHON, "-u", script, *arguments), files={script: source.encode()}, limits=limits or Limits())


async def output_of(runner: Runner, source: str, *arguments: str) -> str:
    result = await runner.run(spec_of(source, *arguments))
    assert result.exit_code == 0, result.log.text
    return result.log.text


async def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.02)


def processes_of(word: str) -> list[int]:
    """The processes of this machine in whose command line a word occurs."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and word in (folder / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


async def kill_parent(script: str) -> None:
    """Kills the process that jobs of a script are forked from; it is the oldest, and all of them bear its name."""
    os.kill(min(processes_of(script)), signal.SIGKILL)


@pytest.fixture
def bare() -> ZygoteRunner:
    """With parents of its own, which have imported nothing."""
    return ZygoteRunner(preload=(), parents=1)


@pytest.fixture(scope="module")
def shared() -> ZygoteRunner:
    """The same, one for many tests."""
    return ZygoteRunner(preload=(), parents=1)


@pytest.fixture
def unique_script() -> str:
    return f"program{secrets.token_hex(8)}.py"


COLD_OR_WARM = {
    "exit code": "import sys; sys.exit(3)",
    "exit with words": "import sys; sys.exit('words')",
    "exit with a large number": "raise SystemExit(300)",
    "exit without Python's end": "import os; print('x'); os._exit(137)",
    "uncaught exception": """
def inner(x):
    return 1 / x
def outer():
    try:
        inner(0)
    except ZeroDivisionError as error:
        raise ValueError("outer") from error
outer()
""",
    "exception in a thread": "import threading\nthreading.Thread(target=lambda: {}[1]).start()",
    "syntax error": "print('never')\nif True print(1)",
    "keyboard interrupt": "raise KeyboardInterrupt",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGABRT)",
    "stack": "import traceback, sys, inspect\ntraceback.print_stack()\nprint(sys._getframe().f_back, inspect.stack())",
    "deep recursion": "def f(n):\n    try: return f(n + 1)\n    except RecursionError: return n\nprint(f(0))",
    "warning beyond the stack": "import warnings\nwarnings.warn('far', stacklevel=9)\nwarnings.warn('near')",
    "warning filters": "import warnings\nwarnings.warn('deprecated', DeprecationWarning)\nprint(warnings.filters)",
    "logging": "import logging\nlogging.warning('w')\nlogging.info('i')\nprint(logging.root.handlers)",
    "end": """
import atexit, threading, time
class Last:
    def __del__(self): print("deleted")
last = Last()
last.cycle = last
atexit.register(print, "first registered")
atexit.register(print, "last registered")
ready = threading.Event()
threading.Thread(target=lambda: (ready.wait(), print("thread"))).start()
threading.Timer(0.05, ready.set).start()
print("main")
""",
    "streams": """
import sys, os
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.isatty(), stream.line_buffering,
          stream.write_through, stream.seekable(), type(stream.buffer))
print(sys.__stdout__ is sys.stdout)
os.write(1, b"unbuffered ")
print("as", end=" ")
os.write(2, b"ever\\n")
print("surrogate", "\\udcff".encode(errors="surrogateescape"))
""",
    "names": """
import sys, os
print(__name__, __file__, __doc__, __package__, __spec__, __builtins__, __annotations__, sorted(globals()))
print(type(__loader__), __loader__.path, sys.modules["__main__"].__dict__ is globals())
print(sys.argv, sys.orig_argv, sys.path, sys.flags, sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix)
print(sys.warnoptions, sys._xoptions, sys.getrecursionlimit(), sys.meta_path, sys.path_hooks)
print(os.getpid(), os.getppid(), os.getcwd(), os.getsid(0), os.getpgid(0), oct(os.umask(0)), os.listdir("."))
""",
    "signals": """
import signal
for number in sorted(signal.valid_signals()):
    print(number, signal.getsignal(number))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.set_wakeup_fd(-1))
""",
    "limits": """
import resource
for name in dir(resource):
    if name.startswith("RLIMIT_"):
        print(name, resource.getrlimit(getattr(resource, name)))
""",
    "place": """
import locale, os, platform, pwd, grp, shutil, socket, threading
print(locale.getlocale(), locale.getpreferredencoding(), socket.gethostname(), platform.node())
print(sorted(set(os.listdir("/dev")) - {"pts", "ptmx", "console", "core"}), sorted(os.listdir("/etc")), os.listdir("/inputs"))
print([pwd.getpwall()[0].pw_dir, grp.getgrall()[0].gr_name], shutil.which("python"), os.path.expanduser("~"))
print(threading.main_thread() is threading.current_thread(), threading.active_count(), threading.get_native_id())
for folder in ("/tmp", "/dev/shm"):
    facts = os.statvfs(folder)
    print(folder, facts.f_blocks * facts.f_frsize, oct(os.stat(folder).st_mode), os.listdir(folder))
for folder in ("/", "/usr", "/inputs", "/dev", "/opt", "/openmle"):
    print(folder, os.access(folder, os.R_OK), os.access(folder, os.W_OK))
""",
    "own modules": """
import sys
for name in ("openmle_gym", "supervisor", "namespaces", "usercustomize"):
    try:
        __import__(name)
        print("found", name)
    except ModuleNotFoundError as error:
        print(error)
""",
    "children": """
import multiprocessing, subprocess, sys
def work(number):
    print("working", number, flush=True)
    return number * 2
if __name__ == "__main__":
    print(subprocess.run([sys.executable, "-c", "import sys; print(sys.argv, sys.flags)"], capture_output=True).stdout)
    for method in ("spawn", "fork", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(pool.map(work, [21]))
""",
}


def facts_of(result: RunResult) -> tuple[int | None, int | None, str]:
    return result.exit_code, result.signal, without_addresses(result.log.text)


@pytest.mark.parametrize("source", COLD_OR_WARM.values(), ids=COLD_OR_WARM)
async def test_a_program_cannot_tell_that_it_was_forked(source: str, shared: ZygoteRunner):
    spec = spec_of(source, "an argument")
    assert facts_of(await shared.run(spec)) == facts_of(await BubblewrapRunner().run(spec))


def without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-f]{6,}", "0x", text)


async def test_a_missing_script_is_told_as_ever(bare: ZygoteRunner):
    spec = RunSpec(argv=(PYTHON, SCRIPT))
    assert facts_of(await bare.run(spec)) == facts_of(await BubblewrapRunner().run(spec))


async def test_random_numbers_differ_between_jobs(zygote: Runner):
    source = """
import random, sys
import numpy
print(random.random(), numpy.random.rand(), numpy.random.default_rng().random())
"""
    first, second = [(await output_of(zygote, source)).split() for _ in range(2)]
    assert all(one != other for one, other in zip(first, second, strict=True))


async def test_a_forked_program_has_the_libraries_at_once_and_a_foreign_command_has_them_not(zygote: Runner):
    source = "import sys; print('pandas' in sys.modules)"
    assert await output_of(zygote, source) == "True\n"
    assert (await zygote.run(RunSpec(argv=(PYTHON, "-c", source)))).log.text == "False\n"


async def test_three_jobs_in_a_row_differ_in_their_hash_seed_from_the_first_job_on():
    runner = ZygoteRunner(preload=(), parents=3)
    hashes = [await output_of(runner, "print(hash('x'))") for _ in range(6)]
    assert all(len(set(hashes[first : first + 3])) == 3 for first in range(4)), hashes


async def test_every_parent_has_a_hash_seed_of_its_own_and_they_take_turns():
    runner = ZygoteRunner(preload=(), parents=3)
    await runner.check()
    deadline = time.monotonic() + 60
    while (turns := [await output_of(runner, "print(hash('x'))") for _ in range(6)])[:3] != turns[3:]:
        assert time.monotonic() < deadline, "they never took turns"  # they start beside the first jobs
    assert len(set(turns[:3])) == 3
    # A parent whose turn comes too soon gives one cold start, and does not keep the others from taking turns for ever.
    pool = runner._pools[SCRIPT]
    first, _, third = pool._parents
    pool._latest.extend((first, third))
    after = [await output_of(runner, "print(hash('x'))") for _ in range(7)]
    assert after[0] not in turns
    assert after[1:4] == after[4:7]
    assert set(after[1:4]) == set(turns[:3])


async def test_after_the_check_all_parents_start():
    def parents() -> set[int]:
        children = Path("/proc/self/task").glob("*/children")
        pids = {int(pid) for listing in children for pid in listing.read_text().split()}
        return pids & set(processes_of("zygote_parent.py"))

    before = parents()
    runner = ZygoteRunner(preload=(), parents=3)
    await runner.check()
    await until(lambda: len(parents() - before) == 3)


async def test_a_parent_is_replaced_after_its_number_of_jobs():
    runner = ZygoteRunner(preload=(), parents=1, jobs_per_parent=2)
    hashes = [await output_of(runner, "print(hash('x'))") for _ in range(6)]
    assert (hashes[0], hashes[2], hashes[4]) == (hashes[1], hashes[3], hashes[5])
    assert len(set(hashes)) == 3


async def test_a_hash_seed_that_the_job_names_is_obeyed(zygote: Runner):
    spec = RunSpec(argv=(PYTHON, SCRIPT), files={SCRIPT: b"print(hash('x'))"}, environment={"PYTHONHASHSEED": "7"})
    assert facts_of(await zygote.run(spec)) == facts_of(await BubblewrapRunner().run(spec))


async def test_numerical_libraries_use_as_many_threads_as_the_limits_say(zygote: Runner):
    source = """
import numpy, threadpoolctl
print({library["num_threads"] for library in threadpoolctl.threadpool_info()})
"""
    for cpus in (1, 2):
        result = await zygote.run(spec_of(source, limits=Limits(cpus=cpus)))
        assert result.log.text == f"{{{cpus}}}\n"


async def test_joblib_found_that_it_can_run_processes(zygote: Runner):
    source = "from joblib._multiprocessing_helpers import mp; print(mp is not None)"
    assert await output_of(zygote, source) == "True\n"


async def test_scikit_learn_runs_in_parallel(zygote: Runner):
    source = """
import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_score
X = np.arange(60.0).reshape(30, 2)
print(RandomForestRegressor(n_estimators=4, n_jobs=2, random_state=0).fit(X, X[:, 0]).predict(X[:2]).shape)
print(cross_val_score(Ridge(), X, X[:, 0], n_jobs=2).round(3))
"""
    assert await output_of(zygote, source) == "(2,)\n[1. 1. 1. 1. 1.]\n"


async def test_a_job_sees_nothing_of_its_parent(zygote: Runner):
    source = """
import os
print(sorted(name for name in os.listdir("/proc") if name.isdigit()), os.getppid())
print(sorted(int(name) for name in os.listdir("/proc/self/fd")))
for path in ("/.host/etc/passwd", "/proc/1/root/etc/passwd", "/proc/1/cwd", "/proc/1/fd", "/proc/1/mem", "/openmle"):
    try:
        print(path, os.listdir(path) if os.path.isdir(path) else open(path))
    except OSError as error:
        print(type(error).__name__)
roots = [line.split()[3:5] for line in open("/proc/self/mountinfo")]
print([place for root, place in roots if place.startswith("/.host") or (root == "/" and place == "/.host")])
"""
    lines = (await output_of(zygote, source)).splitlines()
    assert lines[:2] == ["['1', '2'] 1", "[0, 1, 2, 3]"]
    assert lines[2] in ("FileNotFoundError", "PermissionError")
    assert lines[3:7] == ["PermissionError"] * 4
    assert lines[-1] == "[]"


async def test_jobs_of_one_parent_share_nothing(zygote: Runner):
    leave = """
import os, sys, pandas
pandas.left_behind = True
for place in ("/tmp", "/dev/shm", "/work"):
    open(place + "/left", "w").close()
os.environ["LEFT"] = "1"
"""
    look = """
import os, pandas
print(hasattr(pandas, "left_behind"), os.listdir("/tmp"), os.listdir("/dev/shm"), os.listdir("/work"), "LEFT" in os.environ)
"""
    await output_of(zygote, leave)
    assert await output_of(zygote, look) == f"False [] [] ['{SCRIPT}'] False\n"


async def test_memory_of_the_parent_is_not_the_jobs(zygote: Runner):
    source = "import time, sys\nblock = bytearray(b'x') * (int(sys.argv[1]) << 20)\ntime.sleep(0.5)\nprint('survived')"
    limits = Limits(memory_bytes=100 * MIB)  # the preloaded libraries alone take more
    below = await zygote.run(spec_of(source, "80", limits=limits))
    assert (below.exit_code, below.out_of_memory, below.log.text) == (0, False, "survived\n")
    above = await zygote.run(spec_of(source, "101", limits=limits))
    assert (above.exit_code, above.signal, above.out_of_memory, above.log.text) == (None, 9, True, "")


async def test_a_parent_that_dies_takes_its_jobs_as_trouble_of_the_machinery_and_is_replaced(
    bare: ZygoteRunner, unique_script: str
):
    naps = [f"600.{secrets.randbelow(10**12):012}" for _ in range(2)]
    source = "import subprocess, sys; subprocess.run(['sleep', sys.argv[1]])"
    jobs = [asyncio.create_task(bare.run(spec_of(source, nap, script=unique_script))) for nap in naps]
    await until(lambda: all(processes_of(f"sleep\0{nap}") for nap in naps))
    await kill_parent(unique_script)
    for job in jobs:
        with pytest.raises(RunnerUnavailable, match="vanished"):
            await job
    assert not any(processes_of(nap) for nap in naps)
    result = await bare.run(spec_of("print('again')", script=unique_script))
    assert result.log.text == "again\n"


async def test_a_parent_that_died_between_jobs_is_replaced(bare: ZygoteRunner, unique_script: str):
    await bare.run(spec_of("", script=unique_script))
    await kill_parent(unique_script)
    result = await bare.run(spec_of("print('again')", script=unique_script))
    assert result.log.text == "again\n"


async def test_a_parent_that_does_not_move_is_told_and_its_job_never_runs(bare: ZygoteRunner, unique_script: str):
    await bare.run(spec_of("", script=unique_script))
    os.kill(min(processes_of(unique_script)), signal.SIGSTOP)
    running = asyncio.create_task(bare.run(spec_of("print('late')", script=unique_script)))
    await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.sleep(0.1)
    os.kill(min(processes_of(unique_script)), signal.SIGCONT)
    with pytest.raises(asyncio.CancelledError):
        await running
    result = await bare.run(spec_of("print('again')", script=unique_script))
    assert result.log.text == "again\n"


async def test_parents_die_with_their_runner(unique_script: str):
    runner = ZygoteRunner(preload=(), parents=2)
    for _ in range(3):
        await runner.run(spec_of("", script=unique_script))
    assert processes_of(unique_script)
    del runner
    await until(lambda: not processes_of(unique_script))


async def test_parents_die_with_the_service(tmp_path: Path, unique_script: str):
    service = f"""
import asyncio, sys
from openmle_gym.isolation.runner import PYTHON, RunSpec
from openmle_gym.isolation.zygote import ZygoteRunner
async def main():
    runner = ZygoteRunner(preload=(), parents=2)
    for _ in range(3):
        await runner.run(RunSpec(argv=(PYTHON, "{unique_script}"), files={{"{unique_script}": b""}}))
    print("idle", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    (tmp_path / "service.py").write_text(service)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(tmp_path / "service.py"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"idle\n"
    assert processes_of(unique_script)
    process.kill()
    await process.communicate()
    await until(lambda: not processes_of(unique_script))


async def test_a_preload_that_is_not_installed_is_passed_over():
    runner = ZygoteRunner(preload=("no_such_library.at_all", "json.tool"), parents=1)
    assert await output_of(runner, "import sys; print('json.tool' in sys.modules)") == "True\n"
