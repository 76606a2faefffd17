"""What a program may learn: nothing of the service, the machine's users, or other jobs."""

import asyncio
import json

from sandbox_service.conformance.check import Group, Severity, check, expect
from sandbox_service.conformance.programs import SUBMIT, TELL
from sandbox_service.conformance.service import Service

LOOK_AROUND = (
    TELL
    + """
import glob, stat
words = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
tell(suspicious=[name for name in os.environ if any(word in name.upper() for word in words)])
tell(environment=dict(os.environ))
pids = [name for name in os.listdir("/proc") if name.isdigit()]
tell(pids=len(pids))
others = [pid for pid in pids if int(pid) != os.getpid()]
def readable(path):
    try:
        return open(path, "rb").read(20000).decode(errors="replace")
    except OSError:
        return ""
tell(words=[readable(f"/proc/{pid}/{name}")[:400] for pid in others for name in ("environ", "cmdline")])
tell(reached=[pid for pid in others if attempt(lambda: open(f"/proc/{pid}/mem", "rb")).startswith("<")
              or attempt(lambda: os.listdir(f"/proc/{pid}/fd")).startswith("[")])
tell(descriptors=sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)))
tell(shadow=bool(readable("/etc/shadow")))
tell(kernel=[path for path in ("/dev/kmsg", "/proc/kmsg", "/proc/kcore", "/dev/mem", "/dev/port", "/dev/kvm",
             "/dev/nvram", "/dev/fuse", "/dev/net/tun", "/dev/vsock", "/dev/vhost-vsock", "/dev/loop-control")
             if attempt(lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))) == "None"])
tell(disks=[path for path in glob.glob("/dev/*") if stat.S_ISBLK(os.lstat(path).st_mode)])
tell(sockets=[path for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock",
              "/run/podman/podman.sock", "/run/dbus/system_bus_socket", "/run/systemd/private") if os.path.exists(path)])
homes = ["/root", *glob.glob("/home/*"), os.path.expanduser("~")]
tell(homes=[os.path.join(home, name) for home in homes for name in
            (".ssh", ".aws", ".docker", ".config", ".netrc", ".kube", ".bash_history", ".bashrc", ".git-credentials",
             ".huggingface", ".cache", ".pypirc") if os.path.exists(os.path.join(home, name))])
tell(users=[line.split(":")[0] for line in readable("/etc/passwd").splitlines()
            if line.count(":") > 3 and line.split(":")[2].isdigit() and 1000 <= int(line.split(":")[2]) < 60000])
tell(ids=[os.getuid(), os.geteuid(), os.getgid()])
tell(modules=[name for name in ("openmle_gym", "sandbox_service") if attempt(lambda: __import__(name)).startswith("<")])
"""
)
"""One look around; what each check reads of it stands below."""


@check(Group.SECRETS)
async def environment_holds_no_secret(service: Service) -> None:
    """No variable of the program's environment is named like a secret."""
    ran = await service.shared(LOOK_AROUND)
    expect(ran.fact("suspicious") == [], ran)


@check(Group.SECRETS)
async def api_keys_stay_with_the_service(service: Service) -> None:
    """The keys that clients send reach neither the program's environment nor its log."""
    ran = await service.shared(LOOK_AROUND)
    seen = json.dumps(ran.view)
    expect(not any(secret in seen for secret in service.secrets), "a key stands in the job's result")


@check(Group.SECRETS)
async def environment_of_the_request_is_not_obeyed(service: Service) -> None:
    """A request cannot make the interpreter load code by environment variables."""
    environment = {"LD_PRELOAD": "/nowhere.so", "PYTHONSTARTUP": "/nowhere", "PYTHONHOME": "/nowhere", "PATH": ""}
    ran = await service.run(SUBMIT + "submit()", environment=environment)
    ran.expect_outcome("success")


@check(Group.SECRETS)
async def other_processes_are_not_seen(service: Service) -> None:
    """A program sees its own processes, and at most a few that keep it."""
    ran = await service.shared(LOOK_AROUND)
    expect(ran.fact("pids") <= 5, ran)


@check(Group.SECRETS)
async def keepers_tell_no_secret(service: Service) -> None:
    """Environment and command line of the processes around a program hold no keys and no host paths to answers."""
    ran = await service.shared(LOOK_AROUND)
    words = " ".join(ran.fact("words"))
    expect(not any(word in words for word in ("private", "KEY=", "TOKEN=", "SECRET=", *service.secrets)), ran)


@check(Group.SECRETS)
async def keepers_cannot_be_entered(service: Service) -> None:
    """Memory and descriptors of the processes around a program are out of its reach."""
    ran = await service.shared(LOOK_AROUND)
    expect(ran.fact("reached") == [], ran)


@check(Group.SECRETS)
async def no_descriptor_is_inherited(service: Service) -> None:
    """A program starts with its three standard descriptors alone."""
    ran = await service.shared(LOOK_AROUND)
    expect(ran.fact("descriptors") == [0, 1, 2], ran)


@check(Group.SECRETS)
async def password_hashes_are_hidden(service: Service) -> None:
    """/etc/shadow cannot be read."""
    ran = await service.shared(LOOK_AROUND)
    expect(ran.fact("shadow") is False, ran)


@check(Group.SECRETS)
async def kernel_memory_is_hidden(service: Service) -> None:
    """Kernel log, kernel memory and the devices that lead out of a sandbox cannot be opened."""
    ran = await service.shared(LOOK_AROUND)
    expect(ran.fact("kernel") == [], ran)


@check(Group.SECRETS)
async def no_disk_is_seen(service: Service) -> None:
    """No block device of the machine is in /dev."""
    ran = await service.shared(LOOK_AROUND)
    expect(ran.fact("disks") == [], ran)


@check(Group.SECRETS)
async def no_control_socket_is_seen(service: Service) -> None:
    """No socket that controls the machine is in reach: Docker, containerd, Podman, D-Bus, systemd."""
    ran = await service.shared(LOOK_AROUND)
    expect(ran.fact("sockets") == [], ran)


@check(Group.SECRETS)
async def homes_are_hidden(service: Service) -> None:
    """No user's configuration or credentials are in reach."""
    ran = await service.shared(LOOK_AROUND)
    expect(ran.fact("homes") == [], ran)


@check(Group.SECRETS, Severity.SHOULD)
async def the_machines_users_are_unknown(service: Service) -> None:
    """/etc/passwd is not the machine's own: it names no person."""
    ran = await service.shared(LOOK_AROUND)
    expect(ran.fact("users") == [], ran)


@check(Group.SECRETS)
async def the_program_is_not_root(service: Service) -> None:
    """A program does not run as root, not even as root of its own namespace."""
    ran = await service.shared(LOOK_AROUND)
    expect(0 not in ran.fact("ids"), ran)


@check(Group.SECRETS, Severity.SHOULD)
async def the_services_code_is_hidden(service: Service) -> None:
    """The service's own modules cannot be imported."""
    ran = await service.shared(LOOK_AROUND)
    expect(ran.fact("modules") == [], ran)


@check(Group.SECRETS)
async def mount_table_tells_no_answers(service: Service) -> None:
    """The mount table shows no mount of the private half, writable system folder, or engine socket."""
    ran = await service.run(
        TELL
        + """
lines = [line.split() for line in open("/proc/self/mounts")]
tell(private=[line for line in lines if "private" in line[1] or "docker.sock" in line[1]])
def writable(path):
    probe = os.path.join(path, ".probe")
    return os.path.isdir(path) and attempt(lambda: os.close(os.open(probe, os.O_CREAT | os.O_WRONLY))) == "None"
places = {line[1] for line in lines} | {"/", "/usr", "/usr/bin", "/etc", "/opt", "/lib", "/bin", "/var", "/var/tmp", "/dev",
          "/sys", "/proc/sys/kernel", "/root", "/home", "/boot", "/sys/fs/cgroup", "/inputs", "/openmle", sys.prefix}
tell(writable=sorted(path for path in places if writable(path)), cwd=os.getcwd())
"""
    )
    expect(ran.fact("private") == [], ran)
    allowed = {ran.fact("cwd"), "/tmp", "/dev/shm", "/var/tmp", "/dev/mqueue"}
    expect(set(ran.fact("writable")) <= allowed, f"writable: {ran.fact('writable')}")


@check(Group.SECRETS)
async def kernel_settings_cannot_be_written(service: Service) -> None:
    """Nothing below /proc/sys and /sys can be written, nor the triggers of /proc."""
    ran = await service.run(
        TELL
        + """
written = []
for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches",
             "/proc/sys/fs/binfmt_misc/register", "/sys/kernel/uevent_helper", "/proc/self/uid_map", "/proc/self/setgroups",
             "/proc/self/loginuid", "/sys/fs/cgroup/cgroup.procs", "/proc/self/attr/current"):
    if attempt(lambda: os.close(os.open(path, os.O_WRONLY))) == "None" and "self" not in path:
        written.append(path)
tell(written=written)
"""
    )
    expect(ran.fact("written") == [], ran)


@check(Group.SECRETS)
async def input_data_cannot_be_changed(service: Service) -> None:
    """A program cannot change, add to, remove or re-mode its data, and the next job reads what it read."""
    ran = await service.run(
        SUBMIT
        + """
path = data("test.csv")
before = open(path).read()
folder = os.path.dirname(path)
worked = []
for name, action in {
    "write": lambda: os.close(os.open(path, os.O_WRONLY)), "touch": lambda: os.utime(path),
    "mode": lambda: os.chmod(path, os.stat(path).st_mode), "add": lambda: open(folder + "/new", "w"),
    "rename": lambda: os.rename(path, folder + "/other"), "folder": lambda: os.rmdir(folder), "remove": lambda: os.remove(path),
}.items():
    if not worked and "Error" not in attempt(action):  # the first that works is enough, and the last would do harm
        worked.append(name)
tell(worked=worked, same=open(path).read() == before)
"""
    )
    after = await service.run(
        SUBMIT + "tell(rows=len(rows()), extra=os.path.exists(os.path.dirname(data('test.csv')) + '/new'))"
    )
    expect(ran.fact("worked") == [] and ran.fact("same"), ran)
    expect(after.fact("rows") == 40 and not after.fact("extra"), after)


@check(Group.SECRETS)
async def files_of_former_jobs_are_gone(service: Service) -> None:
    """Nothing that a job writes, wherever it can, is seen by a later one."""
    mark = "mark-of-a-former-job"
    places = ["/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", ".", "~", "/run", "/var/run", "/run/lock"]
    leave = f"""
for place in {places!r}:
    attempt(lambda: open(os.path.join(os.path.expanduser(place), {mark!r}), "w").write("x"))
"""
    look = f"""
tell(seen=[place for place in {places!r} if os.path.exists(os.path.join(os.path.expanduser(place), {mark!r}))])
for place in {places!r}:
    attempt(lambda: os.remove(os.path.join(os.path.expanduser(place), {mark!r})))
"""
    await asyncio.gather(*(service.run(TELL + leave + f"# {number}") for number in range(4)))
    for ran in await asyncio.gather(*(service.run(TELL + look + f"# {number}") for number in range(4))):
        expect(ran.fact("seen") == [], ran)


@check(Group.SECRETS)
async def a_former_job_changes_no_module(service: Service) -> None:
    """What a job does to its interpreter and libraries is not seen by a later one."""
    spoil = """
import builtins, csv, math, random
builtins.spoiled = csv.spoiled = math.spoiled = random.spoiled = True
os.environ["SPOILED"] = "1"
os.umask(0o777)
sys.setrecursionlimit(50000)
"""
    look = """
import builtins, csv, math, random
tell(spoiled=[m.__name__ for m in (builtins, csv, math, random) if hasattr(m, "spoiled")], e="SPOILED" in os.environ)
mask = os.umask(0)
tell(mask=mask)
"""
    await asyncio.gather(*(service.run(TELL + spoil + f"# {number}") for number in range(4)))
    for ran in await asyncio.gather(*(service.run(TELL + look + f"# {number}") for number in range(4))):
        expect(ran.fact("spoiled") == [] and ran.fact("e") is False and ran.fact("mask") != 0o777, ran)


@check(Group.SECRETS, Severity.SHOULD)
async def randomness_differs_between_jobs(service: Service) -> None:
    """Hash seeds and random numbers differ from job to job, as they do between fresh interpreters."""
    source = (
        TELL + "import random, uuid\ntell(drawn=[hash('x'), random.random(), os.urandom(8).hex(), uuid.uuid4().hex])\n"
    )
    runs = await asyncio.gather(*(service.run(source + f"# {number}") for number in range(3)))
    for column in zip(*(ran.fact("drawn") for ran in runs), strict=True):
        expect(len(set(column)) == 3, f"three jobs drew {column}")


@check(Group.SECRETS)
async def files_of_a_job_beside_are_not_seen(service: Service) -> None:
    """Two jobs at once see none of each other's files, sockets or shared memory."""
    mark = "mark-of-a-job-beside"
    leave = f"""
import time
for place in ("/tmp", "/dev/shm", "/var/tmp", "."):
    attempt(lambda: open(os.path.join(place, {mark!r}), "w").write("x"))
time.sleep(6)
"""
    look = f"""
import time
seen = set()
for _ in range(20):
    seen |= {{place for place in ("/tmp", "/dev/shm", "/var/tmp", ".") if os.path.exists(os.path.join(place, {mark!r}))}}
    time.sleep(0.2)
tell(seen=sorted(seen))
"""
    _, ran = await asyncio.gather(service.run(TELL + leave), service.run(TELL + look))
    expect(ran.fact("seen") == [], ran)
