"""The kernel's riskier doors: each is tried, and must be shut."""

from sandbox_service.conformance.check import CheckFunction, Group, Severity, add_check, check, expect
from sandbox_service.conformance.programs import TELL
from sandbox_service.conformance.service import Service

CALLS: dict[str, tuple[int, int, str, Severity]] = {
    "unshare": (272, 97, "make user namespaces of its own", Severity.MUST),
    "mount": (165, 40, "mount", Severity.MUST),
    "ptrace": (101, 117, "trace processes", Severity.SHOULD),
    "io_uring_setup": (425, 425, "use io_uring", Severity.MUST),
    "bpf": (321, 280, "load BPF programs", Severity.MUST),
    "keyctl": (250, 219, "reach kernel keyrings", Severity.MUST),
    "add_key": (248, 217, "add kernel keys", Severity.SHOULD),
    "userfaultfd": (323, 282, "handle page faults itself", Severity.MUST),
    "setns": (308, 268, "enter other namespaces", Severity.MUST),
    "perf_event_open": (298, 241, "read performance events", Severity.MUST),
    "process_vm_readv": (310, 270, "read other processes' memory", Severity.SHOULD),
    "open_by_handle_at": (304, 265, "open files by handle", Severity.MUST),
    "init_module": (175, 105, "load kernel modules", Severity.MUST),
    "kexec_load": (246, 104, "load another kernel", Severity.MUST),
    "pivot_root": (155, 41, "change its root", Severity.MUST),
    "chroot": (161, 51, "change its root folder", Severity.MUST),
    "reboot": (169, 142, "reboot", Severity.MUST),
    "clock_settime": (227, 112, "set the clock", Severity.MUST),
    "swapon": (167, 224, "add swap", Severity.MUST),
    "sethostname": (170, 161, "rename the machine", Severity.MUST),
    "fsopen": (430, 430, "open file systems", Severity.MUST),
    "pidfd_getfd": (438, 438, "take other processes' descriptors", Severity.SHOULD),
    "personality": (135, 92, "change how its binaries run", Severity.SHOULD),
    "syslog": (103, 116, "read the kernel's log", Severity.MUST),
}
"""By name: number on x86_64 and on aarch64, what it would let a program do, and how bad that is."""

TRY_CALLS = (
    TELL
    + f"""
import ctypes, errno, platform, socket, struct, time
column = {{"x86_64": 0, "aarch64": 1}}.get(platform.machine())
libc = ctypes.CDLL(None, use_errno=True)
path = ctypes.create_string_buffer(b"/tmp")
buffer = ctypes.create_string_buffer(4096)
text = lambda words: ctypes.create_string_buffer(words.encode())
name_now, time_now = socket.gethostname(), struct.pack("qq", *divmod(time.time_ns(), 10**9))
# Where a call works it should do nothing: the name and the time are those that are, kinds and flags do not exist.
arguments = {{
    "unshare": (0x10000000,), "mount": (path, path, text("no-such-kind"), 0, 0), "ptrace": (0, 0, 0, 0), "io_uring_setup": (8, buffer),
    "bpf": (0, buffer, 48), "keyctl": (0, -3, 1), "userfaultfd": (1,), "personality": (0x0040000,), "chroot": (path,),
    "pivot_root": (path, path), "swapon": (path, 0), "sethostname": (text(name_now), len(name_now)), "fsopen": (text("tmpfs"), 0),
    "perf_event_open": (buffer, 0, -1, -1, 0), "syslog": (3, buffer, 4096), "add_key":
    (text("user"), path, buffer, 1, -3), "clock_settime": (0, ctypes.create_string_buffer(time_now)),
    "kexec_load": (0, 0, 0, 0xffff),
}}
if column is None:
    tell(machine=platform.machine())
else:
    for name, numbers in {{n: list(c[:2]) for n, c in { ({n: c[:2] for n, c in CALLS.items()})!r}.items()}}.items():
        if os.fork() == 0:  # one that works may change this process
            result = libc.syscall(numbers[column], *arguments.get(name, (0, 0, 0, 0, 0, 0)))
            tell(**{{name: "done" if result >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")}})
            os._exit(0)
        tell(**{{"end_" + name: os.wait()[1]}})
"""
)
REFUSALS = ("EPERM", "ENOSYS", "EACCES", "ENOSPC", "EUSERS")
"""What a filter, a missing power or a limit of zero answers; EINVAL or EFAULT would mean that the kernel listened."""


def _is_refused(name: str) -> CheckFunction:
    async def refused(service: Service) -> None:
        ran = await service.shared(TRY_CALLS)
        if "machine" in ran.facts:
            return
        killed = ran.fact(f"end_{name}") != 0 and name not in ran.facts
        expect(killed or ran.fact(name) in REFUSALS, f"{name}: {ran.facts.get(name)}")

    return refused


for _name, (_, _, _what, _severity) in CALLS.items():
    add_check(
        f"no_{_name}",
        f"A program cannot {_what} ({_name} is refused).",
        _is_refused(_name),
        group=Group.KERNEL,
        severity=_severity,
    )

POWERS = (
    TELL
    + """
import glob, stat, subprocess
facts = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
tell(powers=[facts[name] for name in ("CapPrm", "CapEff", "CapAmb")], heritable=facts["CapInh"], bounding=facts["CapBnd"],
     no_new=facts.get("NoNewPrivs"), filter=facts.get("Seccomp"), groups=os.getgroups())
tell(became=[name for name, action in {
    "root": lambda: os.setuid(0), "root group": lambda: os.setgid(0), "groups": lambda: os.setgroups([0]),
    "root by three": lambda: os.setresuid(0, 0, 0)}.items() if attempt(action) == "None"])
setuid = [path for folder in ("/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin") for path in glob.glob(folder + "/*")
          if os.path.isfile(path) and os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID)]
tell(setuid=setuid[:20])
open("mine", "w").write("#!/bin/sh\\nid -u\\n")
attempt(lambda: os.chmod("mine", 0o6755))
gained = []
for path in [path for path in setuid if os.path.basename(path) in ("su", "mount", "ping", "passwd", "newgrp")]:
    child = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        if "\\t0\\t" in [l for l in open(f"/proc/{child.pid}/status") if l.startswith("Uid")][0] and os.getuid():
            gained.append(path)
    except (OSError, IndexError):
        pass
    child.kill()
    child.wait()
tell(gained=gained)
tell(nodes=[kind for kind, mode in (("character", 0o20666), ("block", 0o60666))
            if attempt(lambda: os.mknod(kind, mode, os.makedev(1, 5))) == "None"])
"""
)


@check(Group.KERNEL)
async def no_powers(service: Service) -> None:
    """A program has no capability."""
    ran = await service.shared(POWERS)
    expect(all(int(word, 16) == 0 for word in ran.fact("powers")), ran)


@check(Group.KERNEL, Severity.SHOULD)
async def no_powers_to_gain(service: Service) -> None:
    """A program's bounding set is empty, or it cannot gain powers at all (no_new_privs)."""
    ran = await service.shared(POWERS)
    expect(int(ran.fact("bounding"), 16) == 0 or ran.fact("no_new") == "1", ran)


@check(Group.KERNEL, Severity.SHOULD)
async def no_powers_to_hand_on(service: Service) -> None:
    """A program's inheritable set is empty."""
    ran = await service.shared(POWERS)
    expect(int(ran.fact("heritable"), 16) == 0, f"CapInh is {ran.fact('heritable')}")


@check(Group.KERNEL)
async def no_new_privileges(service: Service) -> None:
    """no_new_privs is set, so that setuid binaries give nothing."""
    ran = await service.shared(POWERS)
    expect(ran.fact("no_new") == "1" and ran.fact("gained") == [], ran)


@check(Group.KERNEL)
async def system_calls_are_filtered(service: Service) -> None:
    """A filter of system calls is loaded."""
    ran = await service.shared(POWERS)
    expect(ran.fact("filter") == "2", ran)


@check(Group.KERNEL)
async def nobody_can_become_root(service: Service) -> None:
    """A program cannot become root, nor join root's groups."""
    ran = await service.shared(POWERS)
    expect(ran.fact("became") == [] and 0 not in ran.fact("groups"), ran)


@check(Group.KERNEL)
async def no_device_nodes(service: Service) -> None:
    """A program cannot make device nodes."""
    ran = await service.shared(POWERS)
    expect(ran.fact("nodes") == [], ran)
