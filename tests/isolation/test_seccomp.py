import ctypes
import errno
import json
import os
import platform
import struct

import pytest
from openmle_gym.isolation.seccomp import ALLOWED, DENIED, bpf_filter, docker_profile, supported

ALLOW, KILL = 0x7FFF0000, 0x80000000
X86_64, AARCH64 = 0xC000003E, 0xC00000B7
CLONE_NEWUSER, CLONE_THREAD = 0x10000000, 0x00010000
AF_UNIX, AF_INET, AF_NETLINK, AF_VSOCK = 1, 2, 16, 40


def decide(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """Runs a filter as the kernel would; what it returns."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    facts = struct.pack("<iIQ6Q", number, architecture, 0, *padded)
    lines = list(struct.iter_unpack("<HBBI", program))
    accumulator = place = 0
    while True:
        code, when_true, when_false, operand = lines[place]
        place += 1
        if code == 0x20:  # load a word
            (accumulator,) = struct.unpack_from("<I", facts, operand)
        elif code == 0x06:  # return
            return operand
        else:
            holds = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}
            place += when_true if holds[code] else when_false


def errno_of(decision: int) -> int | None:
    """The error that a decision stands for; None when the call is allowed."""
    if decision == ALLOW:
        return None
    assert decision & 0xFFFF0000 == 0x00050000, hex(decision)
    return decision & 0xFFFF


@pytest.mark.parametrize(("machine", "architecture", "column"), [("x86_64", X86_64, 0), ("aarch64", AARCH64, 1)])
def test_exactly_the_table_is_denied(machine: str, architecture: int, column: int):
    program = bpf_filter(machine)
    denied = {numbers[column] for numbers in DENIED.values()} - {None}
    clone3 = 435
    for number in range(470):
        expected = errno.EPERM if number in denied else errno.ENOSYS if number == clone3 else None
        socket = {"x86_64": 41, "aarch64": 198}[machine]
        arguments = (AF_INET,) if number == socket else ()
        assert errno_of(decide(program, architecture, number, *arguments)) == expected, number


@pytest.mark.parametrize(("machine", "architecture", "clone"), [("x86_64", X86_64, 56), ("aarch64", AARCH64, 220)])
def test_clone_may_make_threads_and_no_namespaces(machine: str, architecture: int, clone: int):
    program = bpf_filter(machine)
    assert decide(program, architecture, clone, CLONE_THREAD) == ALLOW
    assert errno_of(decide(program, architecture, clone, CLONE_THREAD | CLONE_NEWUSER)) == errno.EPERM


@pytest.mark.parametrize(("machine", "architecture", "socket"), [("x86_64", X86_64, 41), ("aarch64", AARCH64, 198)])
def test_only_ordinary_sockets_can_be_made(machine: str, architecture: int, socket: int):
    program = bpf_filter(machine)
    for family in (AF_UNIX, AF_INET, 10):
        assert decide(program, architecture, socket, family) == ALLOW
    for family in (AF_NETLINK, AF_VSOCK, 17, 38):
        assert errno_of(decide(program, architecture, socket, family)) == errno.EAFNOSUPPORT
    # The kernel reads 32 bits of this argument, so that what stands above them must not matter.
    assert errno_of(decide(program, architecture, socket, (1 << 32) | AF_VSOCK)) == errno.EAFNOSUPPORT


def test_a_program_cannot_type_into_a_terminal():
    program = bpf_filter("x86_64")
    tcgets, tiocsti = 0x5401, 0x5412
    assert decide(program, X86_64, 16, 0, tcgets) == ALLOW
    assert errno_of(decide(program, X86_64, 16, 0, tiocsti)) == errno.EPERM


def test_calls_by_a_foreign_convention_are_refused():
    program = bpf_filter("x86_64")
    i386 = 0x40000003
    assert decide(program, i386, 26) == KILL  # 26 is ptrace there
    x32 = 0x40000000
    assert errno_of(decide(program, X86_64, x32 | 1)) == errno.EPERM


def test_other_architectures_have_no_filter():
    assert supported("x86_64")
    assert supported("aarch64")
    assert not supported("riscv64")


def test_the_docker_profile_allows_by_name_and_denies_the_rest():
    profile = json.loads(docker_profile())
    assert (profile["defaultAction"], profile["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", errno.EPERM)
    allowed = {name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    assert allowed == set(ALLOWED) | {"clone", "socket"}
    assert not allowed & set(DENIED)
    families = [rule["args"][0]["value"] for rule in profile["syscalls"] if rule["names"] == ["socket"]]
    assert families == [1, 2, 10]


def test_the_tables_are_sorted_and_without_doubles():
    assert list(ALLOWED) == sorted(set(ALLOWED))
    assert list(DENIED) == sorted(DENIED)


@pytest.mark.skipif(not supported(platform.machine()), reason=f"no filter for {platform.machine()}")
def test_the_kernel_takes_the_filter_and_obeys_it():
    program = bpf_filter(platform.machine())
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = ctypes.create_string_buffer(program, len(program))
    description = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(instructions))
    no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    child = os.fork()
    if child == 0:
        libc.prctl(no_new_privileges, 1, 0, 0, 0)
        loaded = libc.prctl(set_seccomp, filter_mode, description, 0, 0) == 0
        denied = libc.unshare(0) == -1 and ctypes.get_errno() == errno.EPERM
        os._exit(0 if loaded and denied and os.getpid() > 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
