"""A Python process that has imported the libraries already, and forks into a program per job.

One file, two lives. As a script, started by `ZygoteRunner` on a socket, it enters namespaces, builds the view of the
file system that programs get, and executes the programs' interpreter there, on the script name that its programs have:
``python program.py``. That interpreter finds this file as `sitecustomize`, which Python imports before it runs the
script, and here it stays, preloads, and forks. A child for whom a job came returns from here: so the interpreter goes
on to run the script, as it would have without us, with not one frame, handler or exit path of ours.

The parent is PID 1 of its namespace: when it dies, the kernel kills all its jobs. It dies with the service.

    service -> parent   a view, as JSON; then the names to preload; then one message per job, with the descriptors of the
                        job as JSON, its record, its error file, its control socket, and perhaps its working directory
    parent -> service   a pidfd of its own when it is ready; on each control socket a pidfd of the job's supervisor

The job's supervisor is the first process of the job's PID namespace and reads the job; the parent never does.
"""

import atexit
import builtins
import ctypes
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from types import ModuleType

from openmle_gym.isolation import namespaces, supervisor

SOCKET = 3
HOST = "/.host"
"""Where the parent, and no program, has the host's file system."""
HOST_NAME = "sandbox"
NOBODY = 65534
MESSAGE_BYTES = 1 << 20
DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
ISOLATED = (
    namespaces.CLONE_NEWNS
    | namespaces.CLONE_NEWNET
    | namespaces.CLONE_NEWIPC
    | namespaces.CLONE_NEWUTS
    | namespaces.CLONE_NEWCGROUP
)


def enter_view() -> None:
    """Becomes the interpreter that programs are forked from; returns, in the process outside, when that has ended."""
    os.dup2(int(sys.argv[1]), SOCKET)
    control = socket.socket(fileno=SOCKET)
    view = json.loads(control.recv(MESSAGE_BYTES))
    user, group = os.getuid(), os.getgid()
    if user == 0:
        namespaces.unshare(ISOLATED | namespaces.CLONE_NEWPID)
    else:
        namespaces.unshare(ISOLATED | namespaces.CLONE_NEWPID | namespaces.CLONE_NEWUSER)
        # Not as root: what a process hides in /proc from its own user belongs to its namespace's root.
        namespaces.map_user(inside=NOBODY, user=user, group=group)
        namespaces.keep_capabilities()
    namespaces.die_with_parent()
    child = os.fork()
    if child:
        control.close()
        os.waitpid(child, 0)
        return
    namespaces.die_with_parent()
    socket.sethostname(HOST_NAME)
    build_view(view["links"], view["shown"])
    os.execve(view["command"][0], view["command"], view["environment"])


def build_view(links: list[list[str]], shown: list[list[str]]) -> None:
    """Makes a root of links and read-only mounts, and the empty places for what differs between jobs."""
    namespaces.receive_only()
    namespaces.mount("tmpfs", "/tmp", "mode=0755,size=1m")
    os.mkdir(f"/tmp{HOST}", 0o700)
    namespaces.pivot_root("/tmp", f"/tmp{HOST}")
    for content, place in links:
        os.symlink(content, place)
    for source, target in shown:
        show(source, target)
    for folder in ("/work", "/inputs", "/tmp", "/proc", "/dev", "/etc"):
        os.makedirs(folder, exist_ok=True)
    for file in ("/etc/passwd", "/etc/group"):
        open(file, "w").close()
    namespaces.mount("proc", "/proc")
    namespaces.mount("tmpfs", "/dev", "mode=0755,size=64k")
    for device in DEVICES:
        show(f"/dev/{device}", f"/dev/{device}", devices=True)
    for name, content in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{content}", f"/dev/{name}")
    os.mkdir("/dev/shm")
    # Each job covers it with its own; but joblib finds out, when it is imported, whether it can make semaphores.
    namespaces.mount("tmpfs", "/dev/shm", "mode=1777,size=1m")
    namespaces.restrict("/dev", devices=True, below=False)
    # Nobody may list the root: a program that searches from there would follow /proc/self/root in circles for ever.
    os.chmod("/", 0o111)
    namespaces.restrict("/", below=False)
    os.chdir("/work")


def show(source: str, target: str, *, writable: bool = False, devices: bool = False) -> None:
    """Shows something of the host at a place that it makes."""
    source = HOST + source
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            open(target, "w").close()
    namespaces.bind(source, target)
    namespaces.restrict(target, writable=writable, devices=devices)


def serve() -> None:
    """Preloads and forks; returns only in a child, which is the program now."""
    control = socket.socket(fileno=SOCKET)
    os.set_inheritable(SOCKET, False)
    namespaces.die_with_parent()
    hide_ourselves()
    preloaded: dict[str, ModuleType] = {}
    atexit.register(forget, preloaded)  # the first to be registered is the last to be called
    for name in json.loads(control.recv(MESSAGE_BYTES)):
        with suppress(ImportError):
            importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise SystemExit(f"the preloaded libraries started {threads - 1} threads, which no fork can copy")
    preloaded |= {name: sys.modules[name] for name in sys.modules.keys() - {"sys", "builtins", "__main__", __name__}}
    keep_for_ever([*preloaded.values(), *map(vars, preloaded.values())])
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody has to wait for the supervisors
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    myself = os.pidfd_open(os.getpid())
    socket.send_fds(control, [b"ready"], [myself])
    os.close(myself)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 5)
        if not message:
            os._exit(0)
        try:
            namespaces.unshare(namespaces.CLONE_NEWPID)
            child = os.fork()
            if child == 0:
                control.close()
                os.close(own)
                become_job(*descriptors)
                return
            answer(descriptors[3], child)
        except OSError as error:  # too many processes or namespaces; the end of the job's socket tells the rest
            os.write(descriptors[2], f"{error}\n".encode())
        namespaces.enter(own, namespaces.CLONE_NEWPID)
        for descriptor in descriptors:
            os.close(descriptor)


def hide_ourselves() -> None:
    """Has programs find none of our modules, and the machine's own `sitecustomize`, which this one stands before."""
    here = os.path.dirname(__file__)
    sys.path.remove(here)
    del sys.path_importer_cache[here]
    for name in [name for name in sys.modules if name.startswith("openmle_gym")]:
        del sys.modules[name]
    sys.modules[__name__] = systems_own_customization()


def systems_own_customization() -> ModuleType:
    """The `sitecustomize` of the machine, which ours hides, imported; an empty module where it has none."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        return ModuleType("sitecustomize")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def forget(preloaded: dict[str, ModuleType]) -> None:
    """Has the interpreter, when it ends, take apart what the program made and not what it found.

    That would touch, and so copy, every page of the parent's memory. It spares what is not in `sys.modules`.
    """
    for name, module in preloaded.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


def keep_for_ever(objects: list) -> None:
    """Leaks a reference."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(objects))


def answer(control: int, supervisor_pid: int) -> None:
    """Tells the service of a job's supervisor."""
    pidfd = os.pidfd_open(supervisor_pid)
    try:
        with socket.socket(fileno=os.dup(control)) as ours:
            socket.send_fds(ours, [b"started"], [pidfd])
    finally:
        os.close(pidfd)


def become_job(request: int, record: int, errors: int, control: int, work: int | None = None) -> None:
    """Isolates this process, forks the program from it, and supervises; returns in the program only."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(errors, 2)
        with open(request, "rb") as file:
            job = json.load(file)
        isolate(job, work)
        # Else the program, which has our user, could reach our descriptors through /proc.
        supervisor.LIBC.prctl(supervisor.PR_SET_DUMPABLE, 0, 0, 0, 0)
        output, output_write = os.pipe()
        program = os.fork()
        if program == 0:
            become_program(job, output_write)
            return
        os.close(output_write)
        kept, most = supervisor.Record(record, job["log_bytes"]), job["output_bytes"]
        supervisor.see_through(program, output, kept, output_bytes=most, control=control, subreaper=False)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def isolate(job: dict, work: int | None) -> None:
    """Leaves the parent's namespaces and file system, and every power.

    Args:
        work: A mount for the working directory; None where a path of the host's names it.
    """
    namespaces.unshare(ISOLATED)
    socket.sethostname(HOST_NAME)
    namespaces.start_loopback()
    namespaces.mount("proc", "/proc", executable=False)
    for target, size in job["tmpfs"].items():
        namespaces.mount("tmpfs", target, f"mode=1777,size={size},nr_inodes={job['inodes']}")
    namespaces.mount("tmpfs", "/inputs", "mode=0755,size=1m")
    for source, target in job["shown"]:
        show(source, target)
    namespaces.restrict("/inputs", below=False)
    if work is None:
        show(job["work"], "/work", writable=True)
    else:
        namespaces.attach(work, "/work")
    namespaces.detach(HOST)
    os.chdir("/work")
    if job["uid"] is None:
        user, group = os.getuid(), os.getgid()
        namespaces.unshare(namespaces.CLONE_NEWUSER)
        namespaces.map_user(inside=NOBODY, user=user, group=group)
    namespaces.drop_privileges(job["uid"])
    namespaces.filter_system_calls(bytes.fromhex(job["filter"]))


def become_program(job: dict, output: int) -> None:
    """Makes this process what an interpreter is just before it runs its script; or executes another command."""
    supervisor.enter_program(job["rlimits"], output, ours=None)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(job["environment"])
    if not job["warm"]:
        os._exit(supervisor.execute(job["argv"]))
    # The main module that is there may not be taken apart at the end, being one of those that `gc.freeze` passed over.
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=builtins)
    sys.orig_argv[:] = job["argv"]
    sys.argv[:] = job["argv"][job["argv"].index(job["warm"]) :]
    time.tzset()
    if logging := sys.modules.get("logging"):
        logging.__dict__["_startTime"] = time.time_ns() if sys.version_info >= (3, 13) else time.time()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if job["threads"] > 1 and (threadpoolctl := sys.modules.get("threadpoolctl")):
        threadpoolctl.threadpool_limits(job["threads"])


if __name__ == "__main__":
    enter_view()
else:
    serve()
