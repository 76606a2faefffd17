"""The first process inside every isolation: starts the program, keeps its output bounded, says how it ended.

It runs on the isolation's own interpreter, perhaps in an image that has nothing of ours, so it is one file on the
standard library, started as ``python -I -S supervisor.py KEY=VALUE... -- ARGV...`` in the program's working directory:

    record       the record file, as a descriptor number or a path; it exists and has its full size
    log_bytes    bytes of output to keep
    output_bytes after so many bytes of output, kept or not, the program is killed
    rlimit.NAME  a limit for the program, such as rlimit.FSIZE
    uid          become this user and group first
    control      1: stdin is a pipe from the runner; a byte or its end means "kill all and go"
    subreaper    1: adopt the program's orphans and kill them at the end (else a PID namespace does that)
    hide_root    1: the program shall not be able to list /, or to write where the record is, a folder in /

The record is written as things happen, so it tells the truth even if everything here is killed at any moment:
a header (output bytes so far, wait status, phase), the first half of the budget, and a ring of the other half.
"""

# It starts once for every program, so what it imports is felt: `signal` only wraps `_signal` in enums, and these, like
# `contextlib`, would bring in as much of the library again, a quarter of the time that the supervisor takes to start.
import _signal as signal  # pyright: ignore[reportMissingImports]
import ctypes
import os
import resource
import select
import struct
import sys

HEADER = struct.Struct("<QiB")
"""Output bytes so far, wait status of the program, phase."""
PREPARED, STARTED, ENDED = 0, 1, 2
CHUNK_BYTES = 65536
PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 4, 24, 36
CAPABILITY_VERSION_3 = 0x20080522
LIBC = ctypes.CDLL(None)
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_WRITE_FILE, LANDLOCK_READ_DIR, LANDLOCK_REFER, LANDLOCK_TRUNCATE = 1 << 1, 1 << 3, 1 << 13, 1 << 14


class Record:
    """The record file, as its writer sees it."""

    def __init__(self, descriptor: int, log_bytes: int) -> None:
        self.descriptor = descriptor
        self.half = log_bytes // 2
        self.total = 0

    def write_header(self, status: int, phase: int) -> None:
        os.pwrite(self.descriptor, HEADER.pack(self.total, status, phase), 0)

    def feed(self, output: bytes) -> None:
        """Keeps what belongs to the head or may be the tail, and counts the rest."""
        to_head = output[: max(0, self.half - self.total)]
        if to_head:
            os.pwrite(self.descriptor, to_head, HEADER.size + self.total)
        end = self.total + len(output) - self.half
        to_ring = output[len(to_head) :][-self.half :]
        start = (end - len(to_ring)) % self.half
        for part, place in ((to_ring[: self.half - start], start), (to_ring[self.half - start :], 0)):
            if part:
                os.pwrite(self.descriptor, part, HEADER.size + self.half + place)
        self.total += len(output)
        self.write_header(0, STARTED)


def hide_root(ours: str) -> None:
    """Lets this process list every folder but /, where the kernel can do that (Landlock, its second version).

    A program that searches from / would else follow /proc/self/root in circles until its time is up.

    Args:
        ours: A folder in / where it may not write either, though it may be the owner of a file there; before Landlock's
            third version it may still cut such a file short.
    """
    call = LIBC.syscall
    version = call(LANDLOCK_CREATE_RULESET, None, 0, 1)
    if version < 2:
        return
    # Moving files between folders has to be allowed by name; it is denied as soon as any rule is in force.
    reading = LANDLOCK_READ_DIR | LANDLOCK_REFER
    writing = LANDLOCK_WRITE_FILE | (LANDLOCK_TRUNCATE if version >= 3 else 0)
    rules = call(LANDLOCK_CREATE_RULESET, struct.pack("=Q", reading | writing), 8, 0)
    for entry in os.scandir("/"):
        if entry.is_dir(follow_symlinks=False):
            rights = reading if entry.path == ours else reading | writing
            folder = os.open(entry.path, os.O_PATH | os.O_CLOEXEC)
            call(LANDLOCK_ADD_RULE, rules, 1, struct.pack("=Qi", rights, folder), 0)
            os.close(folder)
    call(LANDLOCK_RESTRICT_SELF, rules, 0)
    os.close(rules)


def become_user(user: int) -> None:
    """Becomes a user and group without any power, nor the means to inherit one."""
    capability = 0
    while LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    if LIBC.capset(struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(24)) != 0:
        raise OSError("capset")


def enter_program(rlimits: dict[str, int], output: int, *, ours: str | None) -> None:
    """Makes the process that calls it the program's: a session, streams and limits of its own.

    Args:
        ours: See `hide_root`; None leaves / open.
    """
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # else it may not write to its own /proc
    try:
        with open("/proc/self/oom_score_adj", "w") as preference:
            preference.write("1000")  # if the machine runs short, the program goes first
    except OSError:
        pass
    if ours is not None:
        hide_root(ours)
    for name, value in rlimits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (lowered, lowered))


def execute(argv: list[str]) -> int:
    """Becomes the program; where that cannot be, says why and returns the exit code that a shell would give."""
    # The interpreter ignores these, and what is ignored stays so across exec.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"cannot run {argv[0]!r}: {error.strerror}\n".encode())
        return 127 if isinstance(error, FileNotFoundError) else 126


def start_program(argv: list[str], rlimits: dict[str, int], output: int, *, ours: str | None) -> int:
    """Forks the program into a session of its own; its PID, which is also its process group."""
    child = os.fork()
    if child:
        return child
    try:
        enter_program(rlimits, output, ours=ours)
    except OSError as error:
        os.write(2, f"cannot prepare {argv[0]!r}: {error.strerror}\n".encode())
        os._exit(126)
    os._exit(execute(argv))


def children_of_self() -> list[int]:
    """The living and the dead that nobody has waited for."""
    with open(f"/proc/self/task/{os.getpid()}/children") as listing:
        return [int(pid) for pid in listing.read().split()]


def kill(pid: int) -> None:
    try:  # noqa: SIM105
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it is gone, or has changed its user; the runner gives up waiting for that one


def kill_all(group: int) -> None:
    """Kills the program's group at one stroke, then everything that it left to us, until nothing is left."""
    kill(-group)
    while True:
        for pid in children_of_self():
            kill(pid)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def reap(program: int) -> int | None:
    """Waits for whatever is dead; the program's wait status, when it was among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == program:
            found = status


def see_through(
    program: int, output: int, record: Record, *, output_bytes: int, control: int | None, subreaper: bool
) -> int | None:
    """Records a program's output and end, and kills what it leaves.

    Args:
        output: What the program writes, to read; nobody but the program has the other end.
        output_bytes: The program is killed when it has written more.
        control: Where a byte or the end means "kill all and go".
        subreaper: Whether to kill the program's orphans, because no PID namespace does that.

    Returns:
        The wait status, or None when it was told to go.
    """
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    record.write_header(0, STARTED)
    sources = [wake_read, output] + ([] if control is None else [control])
    status = reap(program)  # its end may have come before the handler
    while status is None:
        ready, _, _ = select.select(sources, [], [])
        if control in ready:
            if subreaper:
                kill_all(program)
            return None
        if output in ready:
            chunk = os.read(output, CHUNK_BYTES)
            record.feed(chunk)
            if record.total > output_bytes:
                kill(-program)
            if not chunk:
                sources.remove(output)
        if wake_read in ready:
            os.read(wake_read, CHUNK_BYTES)
            status = reap(program)

    # What the program wrote before its end is in the pipe now; a descendant may hold the pipe open and go on writing.
    os.set_blocking(output, False)
    for _ in range(16):
        try:
            chunk = os.read(output, CHUNK_BYTES)
        except BlockingIOError:
            break
        if not chunk:
            break
        record.feed(chunk)
    record.write_header(status, ENDED)
    if subreaper:
        kill_all(program)
    return status


def main() -> int:
    split = sys.argv.index("--")
    settings = dict(word.split("=", 1) for word in sys.argv[1:split])
    argv = sys.argv[split + 1 :]
    rlimits = {key[len("rlimit.") :]: int(value) for key, value in settings.items() if key.startswith("rlimit.")}
    controlled, subreaper = "control" in settings, "subreaper" in settings
    target = settings["record"]
    descriptor = int(target) if target.isdigit() else os.open(target, os.O_WRONLY)
    os.set_inheritable(descriptor, False)
    if "uid" in settings:
        become_user(int(settings["uid"]))
    # Else the program, which has our user, could reach our descriptors through /proc.
    LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    if subreaper:
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    record = Record(descriptor, int(settings["log_bytes"]))
    output, output_write = os.pipe()
    ours = os.path.dirname(target) if "hide_root" in settings else None
    program = start_program(argv, rlimits, output_write, ours=ours)
    os.close(output_write)
    most, control = int(settings["output_bytes"]), 0 if controlled else None
    status = see_through(program, output, record, output_bytes=most, control=control, subreaper=subreaper)
    if status is None:
        return 0
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
