"""Whether the hidden answers are out of reach, wherever a program looks."""

from sandbox_service.conformance.check import Group, check, expect
from sandbox_service.conformance.programs import CANARY, CANARY_HALVES, SUBMIT
from sandbox_service.conformance.service import Service

WALK = (
    SUBMIT
    + f"""
import time
first, second = {CANARY_HALVES!r}
word = (first + second).encode()
places = ["/", os.path.dirname(data("test.csv")), os.getcwd()]
here = os.path.dirname(os.path.realpath(data("test.csv")))
while here != "/":
    here = os.path.dirname(here)
    places.append(here)
places += ["/" + name for name in ("home", "root", "mnt", "media", "srv", "data", "tasks", "inputs", "work", "workspace",
           "var", "run", "tmp", "opt", "etc", "app", "openmle", "answers", "private", "usr/local", "dev/shm")]
found, named, seen, ends = [], [], set(), time.monotonic() + 25
for place in places:
    for folder, folders, files in os.walk(place):
        if time.monotonic() > ends:
            break
        if folder in seen or folder.startswith(("/proc", "/sys", "/dev/fd")) or folder.count("/") > 14:
            folders.clear()
            continue
        seen.add(folder)
        folders[:] = [name for name in folders if name not in ("site-packages", "lib", "lib64", "share", "include")]
        for name in files:
            path = os.path.join(folder, name)
            if name in ("test_answer.csv", "metric.py", "task.toml", "canary.txt", "jobs.sqlite", "docker.sock"):
                named.append(path)
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 1000000 and word in open(path, "rb").read():
                    found.append(path)
            except OSError:
                pass
tell(found=found[:20], named=named[:20], folders=len(seen))
"""
)


@check(Group.SECRETS)
async def hidden_answers_are_nowhere(service: Service) -> None:
    """A program that walks every folder it can enter finds no file with the package's private mark."""
    ran = await service.shared(WALK)
    expect(ran.fact("found") == [], ran)


@check(Group.SECRETS)
async def the_metric_and_the_records_are_nowhere(service: Service) -> None:
    """No file named like the metric, the answers, the manifest or the service's database is in reach."""
    ran = await service.shared(WALK)
    expect(ran.fact("named") == [], ran)


@check(Group.SECRETS)
async def answers_are_not_beside_the_data(service: Service) -> None:
    """The paths that lead from the public data to the private folder lead nowhere, through /proc as well."""
    ran = await service.run(
        SUBMIT
        + """
tried = []
for here in {os.path.dirname(how(data("test.csv"))) for how in (os.path.abspath, os.path.realpath)}:
    for root in ("", "/proc/self/root", "/proc/1/root"):
        for step in ("../private", "../../data/private", "../../utils", "../..", "private"):
            for name in ("test_answer.csv", "metric.py", "canary.txt", "task.toml"):
                path = root + os.path.join(here, step, name)
                if os.path.exists(path):
                    tried.append(path)
tell(tried=tried)
"""
    )
    expect(ran.fact("tried") == [], ran)


@check(Group.SECRETS)
async def results_hold_no_answer(service: Service) -> None:
    """What a job's answer says of a refused submission quotes no hidden answer and no private file."""
    ran = await service.run(SUBMIT + "open('submission.csv', 'w').write('id,y\\n100,1\\n')")
    expect(CANARY not in str(ran.view) and "private" not in str(ran.view), ran)
