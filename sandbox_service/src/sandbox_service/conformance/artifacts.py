"""A submission that is not what it seems: read only after death, never through a link, never without bound."""

from sandbox_service.conformance.check import CheckFunction, Group, Severity, add_check, check, expect
from sandbox_service.conformance.programs import CANARY, SUBMIT, TELL
from sandbox_service.conformance.service import Service

REFUSED = ("scoring_failed", "submission_missing", "code_execution_error")
LEAKS = ("root:x:", "root:*:", "PATH=", CANARY)
"""What stands in the files that the programs below would have read for them."""

DISGUISES = {
    "a_link_to_shadow": ("a link to /etc/shadow", "os.symlink('/etc/shadow', 'submission.csv')"),
    "a_link_to_passwd": ("a link to /etc/passwd", "os.symlink('/etc/passwd', 'submission.csv')"),
    "a_link_to_the_environment": (
        "a link to the reader's own environment",
        "os.symlink('/proc/self/environ', 'submission.csv')",
    ),
    "a_link_to_the_readers_root": (
        "a link through the reader's own root",
        "os.symlink('/proc/self/root/etc/passwd', 'submission.csv')",
    ),
    "a_relative_link_out": (
        "a relative link out of the folder",
        "os.symlink('../' * 12 + 'etc/passwd', 'submission.csv')",
    ),
    "a_link_to_the_answers": (
        "a link to where the hidden answers would lie",
        "os.symlink(os.path.join(os.path.dirname(data('test.csv')), '../private/test_answer.csv'), 'submission.csv')",
    ),
    "a_linked_folder": (
        "a file below a linked folder",
        "os.symlink('/etc', 'd')\nos.symlink('d/passwd', 'submission.csv')",
    ),
    "links_in_a_circle": (
        "two links to each other",
        "os.symlink('b', 'submission.csv')\nos.symlink('submission.csv', 'b')",
    ),
    "a_link_to_a_terminal": ("a link to a device", "os.symlink('/dev/zero', 'submission.csv')"),
    "a_link_to_standard_input": ("a link to a descriptor", "os.symlink('/proc/self/fd/0', 'submission.csv')"),
    "a_fifo": ("a named pipe", "os.mkfifo('submission.csv')"),
    "a_socket": (
        "a socket",
        "import socket\nlistener = socket.socket(socket.AF_UNIX)\nlistener.bind('submission.csv')",
    ),
    "a_folder": ("a folder", "os.mkdir('submission.csv')"),
    "a_device": ("a device node", "attempt(lambda: os.mknod('submission.csv', 0o20666, os.makedev(1, 5)))"),
    "a_sparse_file": (
        "ten gigabytes of nothing",
        "os.truncate(os.open('submission.csv', os.O_CREAT | os.O_WRONLY), 10 << 30)",
    ),
    "an_endless_line": ("one line of 32 MB", "open('submission.csv', 'w').write('x' * (32 << 20))"),
    "a_hundred_thousand_columns": (
        "a table of 100,000 columns",
        "open('submission.csv', 'w').write(','.join(map(str, range(100000))) + '\\n' + ','.join('1' * 100000) + '\\n')",
    ),
    "bytes_that_are_no_table": ("random bytes", "open('submission.csv', 'wb').write(os.urandom(200000))"),
}


def _is_refused(source: str) -> CheckFunction:
    async def refused(service: Service) -> None:
        ran = await service.run(SUBMIT + source, timeout=90)
        ran.expect_outcome(*REFUSED)
        expect(ran.score is None, f"it was scored: {ran}")
        leaked = [leak for leak in LEAKS if leak in str(ran.view)]
        expect(not leaked, f"{leaked} came back: {ran}")

    return refused


for _name, (_what, _source) in DISGUISES.items():
    add_check(
        _name,
        f"A submission that is {_what} is refused, and tells nothing.",
        _is_refused(_source),
        group=Group.ARTIFACTS,
    )


@check(Group.ARTIFACTS)
async def a_hard_link_outward(service: Service) -> None:
    """A program cannot make a file of the machine its submission by a hard link."""
    ran = await service.run(
        SUBMIT
        + """
made = []
for target in ("/etc/passwd", "/etc/shadow", data("train.csv"), sys.executable):
    if attempt(lambda: os.link(target, "submission.csv")) == "None":
        made.append(target)
        os.remove("submission.csv")
tell(made=made)
"""
    )
    expect(ran.fact("made") == [], ran)


@check(Group.ARTIFACTS)
async def an_unreadable_submission(service: Service) -> None:
    """A submission that its mode makes unreadable is graded or refused, and the job has a result."""
    ran = await service.run(SUBMIT + "submit()\nos.chmod('submission.csv', 0)")
    ran.expect_outcome("success", *REFUSED)


@check(Group.ARTIFACTS)
async def a_locked_working_folder(service: Service) -> None:
    """A program that locks its own working folder has a result, and the next one runs."""
    ran = await service.run(
        SUBMIT + "submit()\nos.makedirs('a/b/c')\nos.chmod('a', 0)\nattempt(lambda: os.chmod('.', 0))"
    )
    ran.expect_outcome("success", *REFUSED)
    (await service.run(SUBMIT + "submit()")).expect_outcome("success")


@check(Group.ARTIFACTS)
async def a_very_deep_folder(service: Service) -> None:
    """Folders nested deeper than a path may be long are cleared away, and the job has a result."""
    ran = await service.run(
        SUBMIT
        + "submit()\nfor _ in range(1500):\n    os.mkdir('deeper')\n    os.chdir('deeper')\nopen('x', 'w').close()"
    )
    ran.expect_outcome("success")


@check(Group.ARTIFACTS)
async def strange_names_beside_the_submission(service: Service) -> None:
    """Files with unprintable names beside a good submission do it no harm."""
    ran = await service.run(
        SUBMIT
        + "submit()\nfor name in (b'\\xff\\xfe', b'new\\nline', b'\\x1b[2J', b'-rf', b'submission.csv ', b'x' * 255):\n"
        "    open(name, 'w').close()"
    )
    ran.expect_outcome("success")


@check(Group.ARTIFACTS)
async def a_submission_put_in_place_by_rename(service: Service) -> None:
    """A submission that was written elsewhere and renamed is graded."""
    ran = await service.run(SUBMIT + "submit(path='part')\nos.replace('part', 'submission.csv')")
    ran.expect_outcome("success")


@check(Group.ARTIFACTS, Severity.SHOULD)
async def a_large_submission_is_allowed(service: Service) -> None:
    """A submission of 10 MB is graded, when only its numbers are long."""
    ran = await service.run(
        SUBMIT + "with open('submission.csv', 'w') as file:\n    file.write('id,y\\n')\n    for name, x in rows():\n"
        "        file.write('%s,%d.%s\\n' % (name, 2 * x + 1, '0' * 250000))"
    )
    ran.expect_outcome("success")
    expect(ran.score == 0.0, ran)


@check(Group.ARTIFACTS)
async def a_program_that_removes_its_submission(service: Service) -> None:
    """A submission that was removed again is missing."""
    ran = await service.run(SUBMIT + "submit()\nos.remove('submission.csv')")
    ran.expect_outcome("submission_missing")


@check(Group.ARTIFACTS)
async def a_submission_of_a_former_job(service: Service) -> None:
    """A job that writes nothing is not graded on what the job before it wrote."""
    await service.run(SUBMIT + "submit()")
    ran = await service.run(TELL + "tell(files=os.listdir('.'))")
    ran.expect_outcome("submission_missing")
