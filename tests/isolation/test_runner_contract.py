"""What every runner promises, run on each of them; what only the isolating ones promise is at the end."""

import asyncio
import json
import os
import platform
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from openmle_gym.errors import ConfigError, RunnerUnavailable
from openmle_gym.isolation.bubblewrap import BubblewrapRunner
from openmle_gym.isolation.choose import strongest_runner
from openmle_gym.isolation.disk import mounts_below
from openmle_gym.isolation.docker import DockerRunner
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.isolation.runner import PYTHON, Isolation, Runner, RunSpec
from openmle_gym.isolation.seccomp import DENIED
from openmle_gym.jobs import MIB, Limits
from scripted_server import Asked, Reply, serving

ORDINARY = Limits()
ABSENT_IMAGE = "openmle/there-is-no-such-image:ever"


@pytest.fixture
def nap() -> str:
    """A number of seconds that no other process on this machine sleeps for."""
    return f"600.{secrets.randbelow(10**12):012}"


def processes_with(word: str) -> list[str]:
    """The command lines on this machine, containers included, in which a word occurs."""
    found: list[str] = []
    for folder in Path("/proc").iterdir():
        try:
            line = (folder / "cmdline").read_bytes().decode(errors="replace") if folder.name.isdigit() else ""
        except (FileNotFoundError, ProcessLookupError):
            continue
        if word in line:
            found.append(line)
    return found


async def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.02)


async def until_running(word: str) -> None:
    await until(lambda: processes_with(word))


def spec_of(
    source: str,
    *arguments: str,
    inputs: Mapping[str, Path] = MappingProxyType({}),
    environment: Mapping[str, str] = MappingProxyType({}),
    limits: Limits = ORDINARY,
    artifacts: Mapping[str, int] = MappingProxyType({}),
) -> RunSpec:
    return RunSpec(
        argv=(PYTHON, "program.py", *arguments),
        files={"program.py": source.encode()},
        inputs=inputs,
        environment=environment,
        limits=limits,
        artifacts=artifacts,
    )


async def test_output_and_exit_code_are_the_programs(runner: Runner):
    result = await runner.run(spec_of("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"))
    assert (result.exit_code, result.signal, result.timed_out, result.out_of_memory) == (7, None, False, False)
    assert sorted(result.log.text.splitlines()) == ["err", "out"]
    assert result.isolation is runner.isolation
    assert 0 < result.wall_seconds < 60


async def test_an_exit_code_above_128_is_no_signal(runner: Runner):
    result = await runner.run(spec_of("import os; os._exit(137)"))
    assert (result.exit_code, result.signal) == (137, None)


async def test_a_signal_is_told_apart_from_an_exit_code(runner: Runner):
    result = await runner.run(spec_of("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    assert (result.exit_code, result.signal) == (None, 11)


async def test_a_missing_executable_is_an_ordinary_failed_result(runner: Runner):
    result = await runner.run(RunSpec(argv=("no-such-command", "x")))
    assert (result.exit_code, result.signal) == (127, None)
    assert "no-such-command" in result.log.text


async def test_a_file_that_cannot_be_executed_is_an_ordinary_failed_result(runner: Runner):
    result = await runner.run(RunSpec(argv=("./notes.txt",), files={"notes.txt": b"hello"}))
    assert result.exit_code == 126


async def test_standard_input_is_empty(runner: Runner):
    result = await runner.run(spec_of("import sys; print(repr(sys.stdin.read()))"))
    assert result.log.text == "''\n"


async def test_the_wall_clock_limit_kills_the_whole_tree(runner: Runner, nap: str):
    source = f"""
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["setsid", "sleep", "{nap}"])
subprocess.Popen(["sh", "-c", "setsid sh -c 'sleep {nap}; true' & setsid sleep {nap} &"])
print("started", flush=True)
while True:
    time.sleep(1)
"""
    result = await runner.run(spec_of(source, limits=Limits(wall_seconds=4.0)))
    assert (result.exit_code, result.signal, result.timed_out, result.out_of_memory) == (None, 9, True, False)
    assert result.log.text == "started\n"
    assert result.wall_seconds >= 4.0
    assert processes_with(nap) == []


async def test_the_run_ends_with_its_main_process_though_a_grandchild_holds_the_output(runner: Runner, nap: str):
    source = f"""
import subprocess
print("before")
subprocess.Popen(["sleep", "{nap}"])
subprocess.Popen(["setsid", "sh", "-c", "while true; do echo noise; done"])
"""
    result = await runner.run(spec_of(source, limits=Limits(wall_seconds=120)))
    assert (result.exit_code, result.timed_out) == (0, False)
    assert result.log.head.startswith("before\n")
    assert processes_with(nap) == []


async def test_the_end_of_an_orphan_is_not_the_end_of_the_program(runner: Runner):
    source = """
import os, subprocess, time
orphan = int(subprocess.check_output(["sh", "-c", "(exec >&-; exit 9) & echo $!"]))
while os.path.exists(f"/proc/{orphan}"):  # dead, and somebody has waited for it
    time.sleep(0.01)
print("after")
raise SystemExit(3)
"""
    result = await runner.run(spec_of(source))
    assert (result.exit_code, result.log.text) == (3, "after\n")


async def test_memory_is_limited(runner: Runner):
    source = "blocks = []\nwhile True: blocks.append(bytearray(20_000_000))"
    result = await runner.run(spec_of(source, limits=Limits(memory_bytes=256 * MIB)))
    assert (result.exit_code, result.signal, result.timed_out, result.out_of_memory) == (None, 9, False, True)


async def test_memory_is_limited_for_all_processes_together(runner: Runner):
    source = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        block = bytearray(100_000_000)
        time.sleep(600)
while True:
    if os.wait():
        os._exit(5)
"""
    result = await runner.run(spec_of(source, limits=Limits(memory_bytes=256 * MIB)))
    assert result.out_of_memory
    assert not result.timed_out


async def test_memory_that_processes_share_counts_once(runner: Runner):
    source = """
import os, time
block = bytearray(150_000_000)
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        time.sleep(0.5)
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
print("ended")
"""
    result = await runner.run(spec_of(source, limits=Limits(memory_bytes=400 * MIB)))
    assert (result.exit_code, result.out_of_memory, result.log.text) == (0, False, "ended\n")


async def test_a_huge_log_keeps_its_ends_within_the_budget(runner: Runner):
    source = "for i in range(200_000): print(i)\nprint('Final Validation Score: 0.9')"
    result = await runner.run(spec_of(source, limits=Limits(log_bytes=10_000)))
    lengths = sum(len(str(i)) + 1 for i in range(200_000)) + len("Final Validation Score: 0.9\n")
    assert result.exit_code == 0
    assert result.log.head.startswith("0\n1\n2\n")
    assert result.log.tail.endswith("199999\nFinal Validation Score: 0.9\n")
    assert (len(result.log.head), len(result.log.tail)) == (5000, 5000)
    assert result.log.truncated_bytes == lengths - 10_000


async def test_a_program_that_prints_without_end_is_killed_and_one_below_that_limit_is_not(runner: Runner):
    limits = Limits(wall_seconds=60, log_bytes=4096, output_bytes=2_000_000)
    endless = "print('first')\nwhile True: print('x' * 99)"
    ends = "import os\nfor _ in range(2000): os.write(1, b'x' * 999 + b'\\n')"  # 2,000,000 bytes
    flooded, allowed = [await runner.run(spec_of(source, limits=limits)) for source in (endless, ends)]
    assert (flooded.exit_code, flooded.signal, flooded.timed_out, flooded.too_much_output) == (None, 9, False, True)
    assert flooded.log.head.startswith("first\nxxx")
    assert (allowed.exit_code, allowed.too_much_output) == (0, False)
    assert allowed.log.truncated_bytes == 2_000_000 - 4096


async def test_the_log_survives_a_kill(runner: Runner):
    source = "i = 0\nwhile True:\n    print(i)\n    i += 1"
    result = await runner.run(spec_of(source, limits=Limits(wall_seconds=2, log_bytes=4096)))
    assert result.timed_out
    assert result.log.head.startswith("0\n1\n2\n")
    assert len(result.log.tail) == 2048


async def test_output_that_is_not_text_does_no_harm(runner: Runner):
    result = await runner.run(spec_of(r"import os; os.write(1, b'\xff\xfe\x00 ok\n')"))
    assert result.log.text == "\ufffd\ufffd\0 ok\n"


async def test_the_environment_is_only_what_the_spec_says(runner: Runner, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENMLE_TEST_API_KEY", "secret")
    monkeypatch.setenv("PYTHONPATH", "/secret")
    result = await runner.run(
        spec_of(
            "import os\nfor name, value in sorted(os.environ.items()): print(f'{name}={value}')",
            environment={"SEED": "3", "DATA": "{inputs}/data"},
            limits=Limits(cpus=1.5),
        )
    )
    environment = dict(line.split("=", 1) for line in result.log.text.splitlines())
    assert environment["SEED"] == "3"
    assert environment["DATA"].endswith("inputs/data")
    assert environment["OMP_NUM_THREADS"] == "2"
    assert "secret" not in result.log.text
    ordinary = {"PATH", "HOME", "TMPDIR", "LANG", "PYTHONUNBUFFERED"}
    threads = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}
    old_cpus = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"}
    by_the_sandbox = {"HOSTNAME", "PWD", "PYTHONDONTWRITEBYTECODE"}
    assert set(environment) <= {"SEED", "DATA"} | ordinary | threads | old_cpus | by_the_sandbox


async def test_a_program_inherits_no_descriptor(runner: Runner):
    source = "import os\nprint(sorted(int(name) for name in os.listdir('/proc/self/fd')))"
    result = await runner.run(spec_of(source))
    assert result.log.text == "[0, 1, 2, 3]\n"  # 3 is the listing's own


async def test_the_program_goes_first_when_the_machine_runs_short(runner: Runner):
    result = await runner.run(spec_of("print(open('/proc/self/oom_score_adj').read())"))
    assert int(result.log.text) == 1000


async def test_files_and_inputs_are_where_the_spec_says(runner: Runner, tmp_path: Path):
    (tmp_path / "data" / "public").mkdir(parents=True)
    (tmp_path / "data" / "public" / "train.csv").write_text("x\n1\n")
    (tmp_path / "answers.csv").write_text("y\n2\n")
    # What is unreadable to others must be readable to the program all the same: it was given to it.
    (tmp_path / "data").chmod(0o700)
    (tmp_path / "answers.csv").chmod(0o600)
    source = """
import os, sys
print(sorted(os.listdir(".")), open("notes.txt").read())
print(open(sys.argv[1] + "/data/public/train.csv").read(), open(sys.argv[1] + "/gold.csv").read())
open("made.txt", "w").write("made")
"""
    result = await runner.run(
        RunSpec(
            argv=(PYTHON, "program.py", "{inputs}"),
            files={"program.py": source.encode(), "notes.txt": b"noted"},
            inputs={"data": tmp_path / "data", "gold.csv": tmp_path / "answers.csv"},
            artifacts={"made.txt": 10},
        )
    )
    assert result.log.text == "['notes.txt', 'program.py'] noted\nx\n1\n y\n2\n\n"
    assert result.artifacts["made.txt"].content == b"made"


async def test_nothing_the_program_does_changes_its_inputs(runner: Runner, tmp_path: Path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.csv").write_text("original")
    (tmp_path / "data").chmod(0o755)
    source = """
import os, sys
for attempt in (
    lambda: open(sys.argv[1] + "/train.csv", "w").write("changed"),
    lambda: open(sys.argv[1] + "/new.csv", "w").write("new"),
    lambda: os.chmod(sys.argv[1] + "/train.csv", 0o777),
    lambda: os.remove(sys.argv[1] + "/train.csv"),
):
    try:
        attempt()
    except OSError:
        pass
"""
    mode = (tmp_path / "data" / "train.csv").stat().st_mode
    result = await runner.run(spec_of(source, "{inputs}/data", inputs={"data": tmp_path / "data"}))
    assert result.exit_code == 0
    assert os.listdir(tmp_path / "data") == ["train.csv"]
    assert (tmp_path / "data" / "train.csv").read_text() == "original"
    assert (tmp_path / "data" / "train.csv").stat().st_mode == mode


async def test_artifacts_of_a_hostile_program_are_refused_by_kind(runner: Runner, tmp_path: Path):
    secret = tmp_path / "answers.csv"
    secret.write_text("secret")
    source = """
import os, sys
open("good.csv", "w").write("id\\n1\\n")
open("big.csv", "w").write("x" * 101)
os.symlink(sys.argv[1], "link.csv")
os.symlink("/proc/self/environ", "environ.csv")
os.symlink("good.csv", "near.csv")
os.mkfifo("fifo.csv")
os.mkdir("folder.csv")
open("one.csv", "w").close()
os.link("one.csv", "two.csv")
os.truncate(os.open("sparse.csv", os.O_CREAT | os.O_WRONLY), 1 << 30)
"""
    expected = {
        "big.csv": "too_large",
        "link.csv": "not_regular",
        "environ.csv": "not_regular",
        "near.csv": "not_regular",
        "fifo.csv": "not_regular",
        "folder.csv": "not_regular",
        "two.csv": "hard_link",
        "sparse.csv": "too_large",
        "absent.csv": "missing",
    }
    result = await runner.run(spec_of(source, str(secret), artifacts=dict.fromkeys(("good.csv", *expected), 100)))
    assert result.exit_code == 0, result.log
    assert result.artifacts["good.csv"].content == b"id\n1\n"
    assert {name: result.artifacts[name].refusal for name in expected} == expected


async def test_a_file_larger_than_the_limit_cannot_be_written(runner: Runner):
    source = "open('big', 'wb').write(bytes(3_000_000))"
    result = await runner.run(spec_of(source, limits=Limits(disk_bytes=1 * MIB)))
    assert result.exit_code == 1
    assert "File too large" in result.log.text


FILLS_THE_WORKING_FOLDER = {
    "bytes": "for number in range(40): open(f'{number}', 'wb').write(bytes(1 << 20))",
    "files": "for number in range(70_000): open(f'{number}', 'w').close()",
}


@pytest.mark.parametrize("source", FILLS_THE_WORKING_FOLDER.values(), ids=FILLS_THE_WORKING_FOLDER)
async def test_the_working_folder_is_limited_and_a_full_one_is_the_programs_own_trouble(
    source: str, runner: Runner, temporary_folder: Path
):
    limits = Limits(disk_bytes=16 * MIB, wall_seconds=120)
    result = await runner.run(spec_of(f"{source}\nimport time\ntime.sleep(600)", limits=limits))
    if os.getuid() == 0 and runner.isolation is not Isolation.PROCESS:  # the kernel keeps the limit
        assert (result.exit_code, result.disk_full) == (1, False)
        assert "[Errno 28] No space left on device" in result.log.text
    else:  # we look and kill
        assert (result.exit_code, result.signal, result.timed_out, result.disk_full) == (None, 9, False, True)
    assert os.listdir(temporary_folder) == []
    after = await runner.run(
        spec_of("import os; open('x', 'wb').write(bytes(15 << 20)); print(sorted(os.listdir()))", limits=limits)
    )
    assert after.log.text == "['program.py', 'x']\n"


async def test_ordinary_parallel_programs_work(runner: Runner):
    source = """
import multiprocessing, os, subprocess, tempfile, threading
from concurrent.futures import ThreadPoolExecutor
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(pool.map(abs, [-1, -2]))
    print(list(ThreadPoolExecutor(2).map(abs, [-3])))
    print(subprocess.check_output(["echo", "hello"]))
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
    os.mkdir("a")
    open("b.txt", "w").close()
    os.replace("b.txt", "a/b.txt")
    print(os.listdir("a"))
"""
    result = await runner.run(spec_of(source))
    assert (result.exit_code, result.log.text) == (0, "[1, 2]\n[3]\nb'hello\\n'\n['b.txt']\n")


async def test_a_run_leaves_nothing_on_the_host(runner: Runner, temporary_folder: Path):
    source = """
import os
os.makedirs("locked/deep")
os.chmod("locked", 0)
for _ in range(1100):
    os.mkdir("deeper")
    os.chdir("deeper")
open("last", "w").close()
"""
    result = await runner.run(spec_of(source))
    assert result.exit_code == 0, result.log
    assert os.listdir(temporary_folder) == []


async def test_cancelling_a_run_leaves_no_process_and_no_file(runner: Runner, temporary_folder: Path, nap: str):
    source = f"import subprocess; subprocess.run(['setsid', '--wait', 'sleep', '{nap}'])"
    running = asyncio.create_task(runner.run(spec_of(source, limits=Limits(wall_seconds=300))))
    await until_running(f"sleep\0{nap}")
    await until(lambda: not mounts_below(temporary_folder))  # so that a kill of ours would leave none either
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert processes_with(nap) == []
    assert os.listdir(temporary_folder) == []


async def test_cancelling_at_once_leaves_no_process_and_no_file(runner: Runner, temporary_folder: Path, nap: str):
    for pause in (0, 0, 0.001, 0.01, 0.03, 0.1, 0.3):
        running = asyncio.create_task(runner.run(spec_of("import time; time.sleep(600)", nap)))
        await asyncio.sleep(pause)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert processes_with(nap) == []
        assert os.listdir(temporary_folder) == []


async def test_many_processes_are_refused_or_end_the_run(runner: Runner, nap: str):
    source = """
import os, time
made = 0
try:
    while made < 3000:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made)
"""
    result = await runner.run(spec_of(source, nap, limits=Limits(wall_seconds=60, processes=40)))
    assert not result.timed_out
    if result.exit_code == 0:
        assert 20 <= int(result.log.text) <= 40
    else:  # root's processes are not limited by the kernel, so the watchdog ends them
        assert result.isolation is Isolation.PROCESS
        assert "more than 40 processes" in " ".join(result.warnings)
    assert processes_with(nap) == []


async def test_runs_side_by_side_do_not_mix(runner: Runner):
    results = await asyncio.gather(*(runner.run(spec_of(f"print({i})", artifacts={"x": 1})) for i in range(5)))
    assert [result.log.text for result in results] == [f"{i}\n" for i in range(5)]


async def test_an_input_that_does_not_exist_is_not_the_programs_fault(runner: Runner, tmp_path: Path):
    with pytest.raises(RunnerUnavailable, match="absent"):
        await runner.run(spec_of("", inputs={"data": tmp_path / "absent"}))


@pytest.mark.parametrize("name", ["../escaped", "a/b", "..", ""])
async def test_a_file_or_input_must_have_a_plain_name(name: str, temporary_folder: Path):
    with pytest.raises(ValueError, match="plain file name"):
        await ProcessRunner(allow_no_isolation=True).run(RunSpec(argv=("true",), files={name: b""}))
    assert os.listdir(temporary_folder) == []


async def test_private_files_of_the_host_are_out_of_reach(isolating_runner: Runner, temporary_folder: Path):
    (temporary_folder / "task" / "data" / "public").mkdir(parents=True)
    (temporary_folder / "task" / "data" / "private").mkdir()
    secret = temporary_folder / "task" / "data" / "private" / "answers.csv"
    secret.write_text("the hidden answers")
    source = """
import glob, os, sys
secret = sys.argv[1]
for path in (secret, "/proc/1/root" + secret, "/inputs/public/../private/answers.csv", "/root/.bashrc", "/etc/shadow"):
    try:
        print("LEAK", path, open(path).read())
    except OSError as error:
        print(error.strerror)
os.symlink(secret, "/work/link")
print(os.path.exists("/work/link"), os.listdir("/inputs"))
print(glob.glob("/**/private/*", recursive=True)[:5])
try:
    import openmle_gym
    print("LEAK", openmle_gym.__file__)
except ImportError:
    pass
"""
    result = await isolating_runner.run(
        spec_of(source, str(secret), inputs={"public": secret.parent.parent / "public"})
    )
    assert result.exit_code == 0, result.log
    assert "LEAK" not in result.log.text
    assert "hidden" not in result.log.text
    assert "False ['public']\n[]\n" in result.log.text


@pytest.fixture
def listening_port() -> Iterator[int]:
    with socket.create_server(("0.0.0.0", 0)) as server:
        yield server.getsockname()[1]


async def test_the_network_is_off(isolating_runner: Runner, listening_port: int):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; tells which of our addresses would be used
        own_address = probe.getsockname()[0]
    with socket.create_connection((own_address, listening_port), timeout=10):
        pass  # the host itself can be reached there
    abstract = f"\0openmle-{secrets.token_hex(8)}"
    source = """
import socket, sys
own, port, abstract = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for address in ("127.0.0.1", own, "172.17.0.1", "192.0.2.1"):
    try:
        socket.create_connection((address, port), timeout=5)
        print("REACHED", address)
    except OSError as error:
        print(type(error).__name__)
try:
    socket.socket(socket.AF_UNIX).connect("\\0" + abstract)
    print("REACHED the host's socket")
except OSError as error:
    print(type(error).__name__)
datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    datagram.sendto(b"x", (own, 9))
    print("SENT")
except OSError as error:
    print(type(error).__name__)
print("end")
"""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(abstract)
        server.listen()
        result = await isolating_runner.run(spec_of(source, own_address, str(listening_port), abstract[1:]))
    assert result.exit_code == 0, result.log
    assert "REACHED" not in result.log.text
    assert "SENT" not in result.log.text
    assert len(result.log.text.splitlines()) == 7


async def test_the_program_has_no_powers_and_is_not_root(isolating_runner: Runner):
    source = """
import os
facts = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(facts["CapEff"], facts["CapPrm"], facts["CapAmb"], facts["CapInh"], facts["NoNewPrivs"], facts["Seccomp"])
print(facts["CapBnd"])
print(os.getuid() != 0, os.getgid() != 0, os.getgroups())
for place in ("/", "/usr", "/etc", "/dev", "/proc/sys/kernel", "/opt", "/inputs", "/openmle"):
    try:
        open(place + "/probe", "w")
        print("WROTE", place)
    except OSError:
        pass
"""
    result = await isolating_runner.run(spec_of(source))
    none = "0000000000000000"
    powers, bounding, user = result.log.text.splitlines()[:3]
    assert powers == f"{none} {none} {none} {none} 1 2"
    assert bounding == none
    assert user.startswith("True True [")
    assert "WROTE" not in result.log.text
    assert "[0]" not in result.log.text


async def test_only_its_own_processes_can_be_seen(isolating_runner: Runner):
    source = "import os\nprint(len([name for name in os.listdir('/proc') if name.isdigit()]))"
    result = await isolating_runner.run(spec_of(source))
    assert int(result.log.text) == 2  # itself and its supervisor


async def test_a_program_that_kills_everything_it_can_kills_only_itself(isolating_runner: Runner, nap: str):
    source = """
import os, signal, subprocess, sys
child = subprocess.Popen(["sleep", sys.argv[1]])
print("before", flush=True)
os.kill(-1, signal.SIGKILL)
os.kill(os.getppid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""
    result = await isolating_runner.run(spec_of(source, nap))
    assert (result.exit_code, result.signal, result.timed_out) == (None, 9, False)
    assert result.log.text == "before\n"
    assert processes_with(nap) == []


async def test_a_fork_bomb_is_contained(isolating_runner: Runner, nap: str):
    source = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
    result = await isolating_runner.run(spec_of(source, nap, limits=Limits(wall_seconds=2, processes=40)))
    assert result.timed_out
    assert processes_with(nap) == []


async def test_what_is_in_the_working_folder_counts_as_memory_where_it_is_memory(isolating_runner: Runner):
    fill = "for number in range(200): open(f'{number}', 'wb').write(bytes(1 << 20))"
    stay = "import time; time.sleep(600)"  # a watchdog looks now and then
    limits = Limits(memory_bytes=128 * MIB, wall_seconds=30)
    result = await isolating_runner.run(spec_of(f"{fill}\n{stay}", limits=limits))
    assert result.out_of_memory is (os.getuid() == 0)


async def test_the_number_of_temporary_files_is_limited(isolating_runner: Runner):
    if os.getuid() != 0 and isolating_runner.isolation is Isolation.BUBBLEWRAP:
        pytest.skip("bubblewrap has no option for it, and nobody but root can mount for it")
    source = """
import os
os.mkdir("/tmp/in")
for number in range(70_000):
    open(f"/tmp/in/{number}", "w").close()
"""
    result = await isolating_runner.run(spec_of(source, limits=Limits(wall_seconds=120)))
    assert result.exit_code == 1
    assert "[Errno 28] No space left on device" in result.log.text


async def test_memory_file_systems_are_limited_and_count_as_memory(isolating_runner: Runner):
    fill = "import sys\nwith open(sys.argv[1], 'wb') as file:\n    for _ in range(400): file.write(bytes(1 << 20))"
    small = Limits(disk_bytes=16 * MIB, memory_bytes=512 * MIB)
    for path in ("/tmp/x", "/dev/shm/x"):
        result = await isolating_runner.run(spec_of(fill, path, limits=small))
        assert result.exit_code == 1
        assert "No space left" in result.log.text or "File too large" in result.log.text
    result = await isolating_runner.run(spec_of(fill, "/tmp/x", limits=Limits(memory_bytes=128 * MIB)))
    assert result.out_of_memory


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no numbers for this architecture")
async def test_risky_system_calls_are_refused(isolating_runner: Runner):
    column = 0 if platform.machine() == "x86_64" else 1
    names = ("io_uring_setup", "ptrace", "userfaultfd", "unshare", "setns", "mount", "bpf", "keyctl", "add_key")
    names += (
        "perf_event_open",
        "kexec_load",
        "open_by_handle_at",
        "process_vm_readv",
        "init_module",
        "syslog",
        "chroot",
    )
    source = """
import ctypes, errno, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
for word in sys.argv[1:]:
    name, number = word.split("=")
    failed = libc.syscall(int(number), 0, 0, 0, 0, 0, 0) == -1
    print(name, failed and errno.errorcode[ctypes.get_errno()])
for family in (40, 16, 17):
    try:
        socket.socket(family, socket.SOCK_RAW if family == 16 else socket.SOCK_STREAM)
        print(family, "made")
    except OSError:
        print(family, "refused")
"""
    result = await isolating_runner.run(spec_of(source, *(f"{name}={DENIED[name][column]}" for name in names)))
    lines = [f"{name} EPERM" for name in names] + ["40 refused", "16 refused", "17 refused"]
    assert result.log.text.splitlines() == lines


async def test_a_program_cannot_reach_its_supervisors_descriptors(namespaced_runner: Runner):
    source = """
import os
try:
    print(os.listdir(f"/proc/{os.getppid()}/fd"))
except PermissionError:
    print("refused")
"""
    result = await namespaced_runner.run(spec_of(source))
    assert result.log.text == "refused\n"


@pytest.mark.parametrize(
    "runner_source", ["ZygoteRunner(preload=())", "BubblewrapRunner()", "ProcessRunner(allow_no_isolation=True)"]
)
async def test_the_program_dies_with_the_service(runner_source: str, temporary_folder: Path, nap: str):
    service = f"""
import asyncio
from openmle_gym.isolation.bubblewrap import BubblewrapRunner
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.isolation.runner import PYTHON, RunSpec
from openmle_gym.isolation.zygote import ZygoteRunner
source = b"import subprocess; subprocess.run(['setsid', '--wait', 'sleep', '{nap}'])"
asyncio.run({runner_source}.run(RunSpec(argv=(PYTHON, "main.py"), files={{"main.py": source}})))
"""
    (temporary_folder / "service.py").write_text(service)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(temporary_folder / "service.py"), env=os.environ | {"TMPDIR": str(temporary_folder)}
    )
    await until_running(f"sleep\0{nap}")
    process.kill()
    await process.wait()
    await until(lambda: not processes_with(nap))


def test_the_process_runner_refuses_without_consent():
    with pytest.raises(ConfigError, match="allow_no_isolation"):
        ProcessRunner()


async def test_the_process_runner_says_on_every_result_that_it_does_not_isolate():
    result = await ProcessRunner(allow_no_isolation=True).run(spec_of(""))
    assert "not isolated" in result.warnings[0]


async def test_a_bwrap_that_cannot_do_it_is_told_with_its_own_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(RunnerUnavailable, match="No permissions to create a new namespace"):
        await BubblewrapRunner().check()


@pytest.mark.docker
async def test_a_program_in_a_container_cannot_write_to_its_own_record(docker_image: str):
    source = """
import os
for attempt in (lambda: open("/openmle/record", "r+b"), lambda: os.truncate("/openmle/record", 0)):
    try:
        print(attempt())
    except PermissionError as error:
        print(error.errno)
for place in ("/work/x", "/tmp/x", "/dev/shm/x", "/dev/null", "/dev/stderr", "/proc/self/comm"):
    open(place, "w").write("x")
"""
    result = await DockerRunner(image=docker_image).run(spec_of(source))
    assert (result.exit_code, result.log.text) == (0, "13\n13\nx")


@pytest.mark.docker
async def test_docker_tells_when_the_program_survived_a_memory_kill(docker_image: str):
    source = """
import os
child = os.fork()
if child == 0:
    blocks = []
    while True:
        blocks.append(bytearray(20_000_000))
print(os.waitpid(child, 0)[1])
"""
    result = await DockerRunner(image=docker_image).run(spec_of(source, limits=Limits(memory_bytes=128 * MIB)))
    assert (result.exit_code, result.out_of_memory, result.log.text) == (0, True, "9\n")
    assert "memory limit" in result.warnings[0]


@pytest.mark.docker
async def test_docker_labels_and_limits_its_containers_and_removes_them(docker_image: str, nap: str):
    import docker

    label = f"run-{nap}"
    engine = docker.from_env()
    running = asyncio.create_task(
        DockerRunner(image=docker_image).run(
            RunSpec(
                argv=("sleep", nap),
                labels={"openmle.test": label},
                limits=Limits(memory_bytes=300 * MIB, cpus=0.5, processes=50),
            )
        )
    )
    ours: dict[str, str | list[str] | bool] = {"label": ["openmle.managed=1", f"openmle.test={label}"]}
    await until(lambda: engine.containers.list(filters=ours))
    (container,) = engine.containers.list(filters=ours)
    host = container.attrs["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"], host["PidsLimit"]) == (
        300 * MIB,
        300 * MIB,
        5 * 10**8,
        51,
    )
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["CapDrop"]) == ("none", True, ["ALL"])
    assert host["LogConfig"]["Type"] == "none"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert engine.containers.list(all=True, filters=ours) == []


@pytest.mark.docker
async def test_docker_keeps_no_container_of_a_run_that_was_cancelled_while_it_was_made(docker_image: str, nap: str):
    import docker

    runner = DockerRunner(image=docker_image)
    for pause in (0.01, 0.02, 0.05, 0.1, 0.2):
        running = asyncio.create_task(runner.run(RunSpec(argv=("sleep", nap), labels={"openmle.test": nap})))
        await asyncio.sleep(pause)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await runner.check()  # gives a container that is still being made the time to appear
    assert docker.from_env().containers.list(all=True, filters={"label": f"openmle.test={nap}"}) == []


async def test_an_engine_that_does_not_answer_is_unavailable(tmp_path: Path):
    with pytest.raises(RunnerUnavailable, match="docker"):
        await DockerRunner(image="x", base_url=f"unix://{tmp_path}/no.sock").check()


async def test_an_engine_that_answers_and_starts_nothing_is_unavailable_and_to_be_restarted():
    pytest.importorskip("docker")
    over = threading.Event()
    facts = {"ApiVersion": "1.41", "NCPU": 2, "Runtimes": {"runc": {}}, "DefaultRuntime": "runc", "Id": "x"}

    def answer(asked: Asked) -> Reply:
        if "/containers/" in asked.path:
            over.wait()
        return Reply(200, json.dumps(facts).encode(), {"Content-Type": "application/json"})

    with serving(answer) as url:
        runner = DockerRunner(image="x", base_url=url, patience_seconds=0.2)
        try:
            with pytest.raises(
                RunnerUnavailable, match=r"did not answer in 0\.2 seconds; when that stays so, restart it"
            ):
                await runner.check()
        finally:
            over.set()


async def test_a_forced_isolation_is_never_replaced_by_a_weaker_one():
    with pytest.raises(RunnerUnavailable, match="docker") as refused:
        await strongest_runner("docker", docker_image=ABSENT_IMAGE, allow_process=True)
    assert "bubblewrap" not in str(refused.value)
    with pytest.raises(ConfigError, match="allow_no_isolation"):
        await strongest_runner("process", docker_image=ABSENT_IMAGE, allow_process=False)
    chosen = await strongest_runner("process", docker_image=ABSENT_IMAGE, allow_process=True)
    assert chosen.isolation is Isolation.PROCESS


async def test_an_unknown_isolation_is_named():
    with pytest.raises(ConfigError, match="'chroot'"):
        await strongest_runner("chroot", docker_image=ABSENT_IMAGE, allow_process=True)


async def test_without_docker_the_next_strongest_is_chosen(zygote: Runner):
    chosen = await strongest_runner(docker_image=ABSENT_IMAGE, allow_process=True)
    assert chosen.isolation is zygote.isolation


WITHOUT_NAMESPACES = f"""
import asyncio, ctypes, platform
from openmle_gym.errors import RunnerUnavailable
from openmle_gym.isolation.choose import strongest_runner
from openmle_gym.isolation.namespaces import filter_system_calls
from openmle_gym.isolation.seccomp import bpf_filter
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # no new privileges
filter_system_calls(bpf_filter(platform.machine()))
print(asyncio.run(strongest_runner(docker_image="{ABSENT_IMAGE}", allow_process=True)).isolation)
for name in ("auto", "zygote"):
    try:
        asyncio.run(strongest_runner(name, docker_image="{ABSENT_IMAGE}", allow_process=False))
    except RunnerUnavailable as error:
        print(str(error).replace("\\n", " "))
"""


async def test_where_no_namespaces_are_to_be_had_it_says_so_and_runs_unisolated_only_with_consent(tmp_path: Path):
    (tmp_path / "service.py").write_text(WITHOUT_NAMESPACES)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(tmp_path / "service.py"), stdout=asyncio.subprocess.PIPE
    )
    chosen, auto, zygote = (await process.communicate())[0].decode().splitlines()
    assert chosen == "process"
    assert re.search(r"docker.*zygote.*unshare.*bubblewrap.*process: not allowed", auto)
    assert re.search(r"zygote: .*Operation not permitted: 'unshare'.*it needs root, or user namespaces", zygote)
    assert "bubblewrap" not in zygote


@pytest.mark.docker
async def test_docker_comes_first_when_its_image_is_there(docker_image: str):
    chosen = await strongest_runner(docker_image=docker_image, allow_process=True)
    assert chosen.isolation is Isolation.DOCKER
