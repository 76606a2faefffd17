"""Which system calls programs may make: a BPF filter for bubblewrap, a profile for Docker, from the same tables.

Namespaces and dropped capabilities leave the kernel's whole surface open. What is closed here are the calls that reach
past a namespace (vsock, keys), that make new ones, that look into other processes, and the parts of the kernel with
the longest record of holes (io_uring, bpf, userfaultfd, performance events). The filter for bubblewrap denies
these and allows the rest; Docker's profile allows `ALLOWED` and denies the rest.
"""

import json
import struct

DENIED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "memfd_secret": (447, 447),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
}
"""Refused with EPERM: number on x86_64, number on aarch64, None where it has none."""

_ALLOWED_NAMES = """
accept accept4 access alarm arch_prctl bind brk capget capset chdir chmod chown clock_getres clock_gettime
clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl
epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64
fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr
fsetxattr fstat fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat get_mempolicy
get_robust_list get_thread_area getcpu getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername
getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname
getsockopt gettid gettimeofday getuid getxattr inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel
io_destroy io_getevents io_pgetevents io_setup io_submit ioctl ioprio_get ioprio_set kill landlock_add_rule
landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listxattr llistxattr lremovexattr
lseek lsetxattr lstat madvise mbind membarrier memfd_create mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall
mmap mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap msgctl msgget msgrcv msgsnd
msync munlock munlockall munmap nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe pipe2
pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64 process_mrelease pselect6 pwrite64
pwritev pwritev2 read readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr rename
renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity
sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam
sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto
set_mempolicy set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid
setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr shmat shmctl shmdt shmget
shutdown sigaltstack signalfd signalfd4 socketpair splice stat statfs statx symlink symlinkat sync sync_file_range
syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat utimes vfork vmsplice
wait4 waitid write writev
"""
ALLOWED = tuple(_ALLOWED_NAMES.split())
"""What Docker's profile allows; beside it `clone` and `socket`, within the bounds below."""

SOCKET_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6; a vsock or netlink socket would reach past the network namespace."""
NAMESPACE_FLAGS = 0x7E020000
"""All CLONE_NEW* flags of clone()."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX put words into a terminal's mouth."""
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97

_CLONE, _CLONE3, _SOCKET, _IOCTL = (56, 220), (435, 435), (41, 198), (16, 29)
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""By machine: the kernel's AUDIT_ARCH value, and the column of the tables."""
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENT_0, _ARGUMENT_1 = 0, 4, 16, 24
"""Offsets in the kernel's struct seccomp_data; of an argument, its lower half."""
_X32_BIT = 0x40000000


def supported(machine: str) -> bool:
    """Whether there is a filter for this architecture, as `platform.machine()` names it."""
    return machine in _ARCHITECTURES


def bpf_filter(machine: str) -> bytes:
    """The filter for bubblewrap, as an array of the kernel's struct sock_filter."""
    architecture, column = _ARCHITECTURES[machine]
    # Each line: code, operand, where to go when true, where to go when not ("" is the next line).
    lines: list[tuple[int, int, str, str]] = []
    labels: dict[str, int] = {}

    def add(code: int, operand: int, when_true: str = "", when_false: str = "", *, label: str = "") -> None:
        if label:
            labels[label] = len(lines)
        lines.append((code, operand, when_true, when_false))

    add(_LOAD, _ARCHITECTURE)
    add(_JUMP_EQUAL, architecture, "", "kill")
    add(_LOAD, _NUMBER)
    if machine == "x86_64":
        add(_JUMP_AT_LEAST, _X32_BIT, "deny")
    for numbers in DENIED.values():
        if (number := numbers[column]) is not None:
            add(_JUMP_EQUAL, number, "deny")
    add(_JUMP_EQUAL, _CLONE3[column], "absent")  # its flags are in memory, out of sight; libc falls back to clone
    add(_JUMP_EQUAL, _CLONE[column], "clone")
    add(_JUMP_EQUAL, _SOCKET[column], "socket")
    add(_JUMP_EQUAL, _IOCTL[column], "ioctl", "allow")
    add(_LOAD, _ARGUMENT_0, label="clone")
    add(_JUMP_ANY_BIT, NAMESPACE_FLAGS, "deny", "allow")
    add(_LOAD, _ARGUMENT_0, label="socket")
    for family in SOCKET_FAMILIES:
        add(_JUMP_EQUAL, family, "allow")
    add(_RETURN, _ERRNO | EAFNOSUPPORT)
    add(_LOAD, _ARGUMENT_1, label="ioctl")
    for request in TERMINAL_INPUT:
        add(_JUMP_EQUAL, request, "deny")
    add(_RETURN, _ALLOW, label="allow")
    add(_RETURN, _ERRNO | EPERM, label="deny")
    add(_RETURN, _ERRNO | ENOSYS, label="absent")
    add(_RETURN, _KILL, label="kill")

    def distance(here: int, label: str) -> int:
        return labels[label] - here - 1 if label else 0

    return b"".join(
        struct.pack("<HBBI", code, distance(here, when_true), distance(here, when_false), operand)
        for here, (code, operand, when_true, when_false) in enumerate(lines)
    )


def docker_profile() -> str:
    """The profile for Docker: JSON, an allow-list."""
    only_native = [{"architecture": name, "subArchitectures": []} for name in ("SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64")]
    no_namespaces = {"index": 0, "value": NAMESPACE_FLAGS, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    families = [{"index": 0, "value": family, "op": "SCMP_CMP_EQ"} for family in SOCKET_FAMILIES]
    rules = [
        {"names": list(ALLOWED), "action": "SCMP_ACT_ALLOW"},
        {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [no_namespaces]},
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},
        *({"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [family]} for family in families),
    ]
    return json.dumps(
        {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": EPERM, "archMap": only_native, "syscalls": rules}
    )
