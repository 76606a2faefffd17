"""Whether a program can reach anything: the machine, its neighbours, the world."""

import asyncio
from urllib.parse import urlsplit

from sandbox_service.conformance.check import Group, Severity, check, expect
from sandbox_service.conformance.programs import TELL
from sandbox_service.conformance.service import Ran, Service


def _probe(service: Service) -> str:
    address = urlsplit(service.config.url)
    host, port = address.hostname or "127.0.0.1", address.port or (443 if address.scheme == "https" else 80)
    return (
        TELL
        + f"""
import glob, socket, stat, struct
def reach(host, port, kind=socket.AF_INET):
    with socket.socket(kind, socket.SOCK_STREAM) as probe:
        probe.settimeout(3)
        probe.connect((host, port))
    return "reached"
def gateway():
    for line in open("/proc/net/route").read().splitlines()[1:]:
        field = line.split()
        if field[1] == "00000000":
            return socket.inet_ntoa(struct.pack("<L", int(field[2], 16)))
    return "172.17.0.1"
service = ({host!r}, {port})
tell(service=attempt(lambda: reach(*service)), loopback=attempt(lambda: reach("127.0.0.1", {port})))
tell(gateway=[attempt(lambda: reach(gateway(), port)) for port in ({port}, 22, 53, 2375)])
tell(world=attempt(lambda: reach("1.1.1.1", 443)), six=attempt(lambda: reach("2606:4700:4700::1111", 443, socket.AF_INET6)))
tell(metadata=[attempt(lambda: reach(host, 80)) for host in ("169.254.169.254", "100.100.100.200", "168.63.129.16")])
datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
tell(datagram=[attempt(lambda: datagram.sendto(b"x", (host, 53))) for host in ("192.0.2.1", "1.1.1.1", "255.255.255.255")])
socket.setdefaulttimeout(3)
tell(name=attempt(lambda: socket.getaddrinfo("example.com", 80)))
tell(interfaces=[line.split(':')[0].strip() for line in open('/proc/net/dev').read().splitlines()[2:]])
tell(vsock=attempt(lambda: socket.socket(40, socket.SOCK_STREAM).fileno()),
     netlink=attempt(lambda: socket.socket(16, socket.SOCK_RAW).fileno()),
     packet=attempt(lambda: socket.socket(17, socket.SOCK_RAW).fileno()),
     raw=attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).fileno()),
     alg=attempt(lambda: socket.socket(38, socket.SOCK_SEQPACKET).fileno()),
     bluetooth=attempt(lambda: socket.socket(31, socket.SOCK_RAW).fileno()))
import time
found, ends = [], time.monotonic() + 10
for place in ("/run", "/var/run", "/tmp", "/var/lib", "/dev"):
    for folder, folders, files in os.walk(place):
        if time.monotonic() > ends:
            folders.clear()
        for name in files:
            path = os.path.join(folder, name)
            try:
                if stat.S_ISSOCK(os.lstat(path).st_mode):
                    found.append(path)
            except OSError:
                pass
for line in open("/proc/net/unix").read().splitlines()[1:]:
    name = line.split()[7:8]
    if name and name[0].startswith("@"):
        found.append(name[0])
tell(unix=found)
"""
    )


async def _probed(service: Service) -> Ran:
    return await service.shared(_probe(service))


@check(Group.NETWORK)
async def the_service_cannot_be_reached(service: Service) -> None:
    """A program cannot connect to the service that runs it, at the address that clients use or on loopback."""
    ran = await _probed(service)
    expect("reached" not in ran.fact("service") + ran.fact("loopback"), ran)


@check(Group.NETWORK)
async def the_machine_cannot_be_reached(service: Service) -> None:
    """A program cannot connect to its gateway, which would be the machine."""
    ran = await _probed(service)
    expect("'reached'" not in ran.fact("gateway"), ran)


@check(Group.NETWORK)
async def the_world_cannot_be_reached(service: Service) -> None:
    """A program cannot open a TCP connection, over IPv4 or IPv6."""
    ran = await _probed(service)
    expect("reached" not in ran.fact("world") + ran.fact("six"), ran)


@check(Group.NETWORK)
async def the_clouds_metadata_cannot_be_reached(service: Service) -> None:
    """A program cannot connect to the addresses where clouds hand out credentials."""
    ran = await _probed(service)
    expect("'reached'" not in ran.fact("metadata"), ran)


@check(Group.NETWORK)
async def no_datagram_leaves(service: Service) -> None:
    """A program cannot send a UDP datagram."""
    ran = await _probed(service)
    expect(all("Error" in word for word in ran.fact("datagram")), ran)


@check(Group.NETWORK)
async def no_name_is_resolved(service: Service) -> None:
    """A program cannot look up a name."""
    ran = await _probed(service)
    expect("rror" in ran.fact("name"), ran)


@check(Group.NETWORK)
async def only_loopback_exists(service: Service) -> None:
    """A program has no network interface but its own loopback."""
    ran = await _probed(service)
    expect(set(ran.fact("interfaces")) <= {"lo", "tunl0", "sit0", "ip6tnl0", "gre0", "ip_vti0", "ip6_vti0"}, ran)


@check(Group.NETWORK)
async def vsock_is_refused(service: Service) -> None:
    """A program cannot open a vsock socket, which no network namespace holds back."""
    ran = await _probed(service)
    expect("Error" in ran.fact("vsock"), ran)


@check(Group.NETWORK)
async def packets_cannot_be_forged(service: Service) -> None:
    """A program cannot open raw or packet sockets."""
    ran = await _probed(service)
    expect("Error" in ran.fact("raw") and "Error" in ran.fact("packet"), ran)


@check(Group.NETWORK)
async def kernel_sockets_are_refused(service: Service) -> None:
    """A program cannot open netlink, AF_ALG or Bluetooth sockets."""
    ran = await _probed(service)
    expect(all("Error" in ran.fact(name) for name in ("netlink", "alg", "bluetooth")), ran)


@check(Group.NETWORK)
async def no_foreign_unix_socket_is_seen(service: Service) -> None:
    """No unix socket of the machine is in reach, with a path or abstract."""
    ran = await _probed(service)
    expect(ran.fact("unix") == [], ran)


@check(Group.NETWORK)
async def jobs_cannot_talk_to_each_other(service: Service) -> None:
    """A job that listens is not reached by another that runs beside it."""
    listen = """
import socket, time
tcp = socket.create_server(("0.0.0.0", 47123))
unix = socket.socket(socket.AF_UNIX)
unix.bind("\\0conformance-neighbour")
unix.listen()
time.sleep(6)
"""
    call = """
import socket, time
reached = []
for _ in range(20):
    for kind, address in ((socket.AF_INET, ("127.0.0.1", 47123)), (socket.AF_UNIX, "\\0conformance-neighbour")):
        with socket.socket(kind) as probe:
            if attempt(lambda: probe.connect(address)) == "None":
                reached.append(str(address))
    time.sleep(0.2)
tell(reached=reached)
"""
    _, ran = await asyncio.gather(service.run(TELL + listen), service.run(TELL + call))
    expect(ran.fact("reached") == [], ran)


@check(Group.NETWORK, Severity.SHOULD)
async def loopback_works_within_a_job(service: Service) -> None:
    """A program can talk to itself: pools of some libraries do."""
    ran = await service.run(
        TELL
        + """
import socket
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5) as client:
    server.accept()[0].send(b"hello")
    tell(heard=client.recv(5).decode())
"""
    )
    expect(ran.fact("heard") == "hello", ran)
