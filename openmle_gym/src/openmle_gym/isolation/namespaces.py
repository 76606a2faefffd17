"""Linux calls for namespaces, mounts and privileges that Python 3.11 lacks: standard library only, one call each.

All raise OSError, with the call's name as the file name.
"""

import ctypes
import fcntl
import os
import platform
import socket
import struct

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_SLAVE = 2, 4, 8, 0x1000, 0x4000, 0x80000
_MNT_DETACH = 2
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 24, 22, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_PIVOT_ROOT, _CAPGET, _CAPSET = {"x86_64": (155, 125, 126), "aarch64": (41, 90, 91)}.get(platform.machine(), (0, 0, 0))
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_SIOCSIFFLAGS, _IFF_UP_RUNNING = 0x8914, 0x41
_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(name: str, result: int) -> None:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def unshare(flags: int) -> None:
    """Leaves the namespaces that `flags` names for fresh ones; with CLONE_NEWPID only children born from now on do."""
    _call("unshare", _LIBC.unshare(flags))


def enter(descriptor: int, flags: int) -> None:
    """Enters a namespace."""
    _call("setns", _LIBC.setns(descriptor, flags))


def map_user(*, inside: int, user: int, group: int) -> None:
    """Gives the fresh user namespace that this process is in its only user and group."""
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside} {user} 1"),
        ("gid_map", f"{inside} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)


def die_with_parent() -> None:
    """Has the kernel kill this process when the thread that made it ends; set it again after a change of user."""
    _call("prctl", _LIBC.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0))


def mount(kind: str, target: str, options: str = "", *, executable: bool = True) -> None:
    """Mounts a fresh file system of a kind."""
    flags = _MS_NOSUID | _MS_NODEV | (0 if executable else _MS_NOEXEC)
    _call(f"mount {target}", _LIBC.mount(kind.encode(), target.encode(), kind.encode(), flags, options.encode()))


def bind(source: str, target: str) -> None:
    """Shows a file or folder, with all that is mounted below it, at a second place."""
    _call(f"bind {source}", _LIBC.mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND | _MS_REC, None))


def copy_mount(path: str) -> int:
    """A descriptor of a second mount of the same file system, for a process in another namespace to `attach`."""
    descriptor = _LIBC.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), _OPEN_TREE_CLONE | os.O_CLOEXEC)
    _call(f"open_tree {path}", descriptor)
    return descriptor


def attach(descriptor: int, target: str) -> None:
    """Puts a mount of `copy_mount` at a place, once."""
    result = _LIBC.syscall(_MOVE_MOUNT, descriptor, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    _call(f"move_mount {target}", result)


def receive_only() -> None:
    """Has no mount of this namespace show outside of it."""
    _call("mount /", _LIBC.mount(None, b"/", None, _MS_SLAVE | _MS_REC, None))


def restrict(target: str, *, writable: bool = False, devices: bool = False, below: bool = True) -> None:
    """Takes set-user-ID from a mount, and unless told otherwise writing and devices, also for what is mounted below."""
    attributes = _ATTR_NOSUID | (0 if writable else _ATTR_RDONLY) | (0 if devices else _ATTR_NODEV)
    what = struct.pack("=4Q", attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if below else 0
    _call(
        f"mount_setattr {target}", _LIBC.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), flags, what, len(what))
    )


def detach(target: str) -> None:
    """Unmounts with all that is below."""
    _call(f"umount {target}", _LIBC.umount2(os.fsencode(target), _MNT_DETACH))


def pivot_root(root: str, old: str) -> None:
    """Makes a mount the root; the old root appears in the folder `old` below it."""
    _call("pivot_root", _LIBC.syscall(_PIVOT_ROOT, root.encode(), old.encode()))
    os.chdir("/")


def start_loopback() -> None:
    """Brings up `lo`, the only device of a fresh network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP_RUNNING))


def keep_capabilities() -> None:
    """Has this process, which is not root in its namespace, keep its capabilities when it executes something."""
    header, sets = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    _call("capget", _LIBC.syscall(_CAPGET, header, sets))
    effective, permitted, _, effective_high, permitted_high, _ = struct.unpack("=6I", sets.raw)
    inheritable = struct.pack("=6I", effective, permitted, permitted, effective_high, permitted_high, permitted_high)
    _call("capset", _LIBC.syscall(_CAPSET, header, inheritable))
    for capability in range(64):
        if (permitted_high << 32 | permitted) >> capability & 1:
            _call("prctl", _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0))


def drop_privileges(user: int | None) -> None:
    """Gives up every capability for ever, in this process and in what it executes.

    Args:
        user: Become this user and group first; None keeps them.
    """
    capability = 0
    while _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    header, none = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
    _call("capset", _LIBC.syscall(_CAPSET, header, none))
    _call("prctl", _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def filter_system_calls(program: bytes) -> None:
    """Loads a filter, an array of the kernel's struct sock_filter, for ever; after `drop_privileges`."""
    instructions = ctypes.create_string_buffer(program, len(program))
    description = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(instructions))
    _call("seccomp", _LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, description, 0, 0))
