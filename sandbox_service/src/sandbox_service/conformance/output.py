"""What comes back of what a program prints: bounded, whole at both ends, and not to be forged."""

from sandbox_service.conformance.check import Group, Severity, check, expect
from sandbox_service.conformance.programs import SUBMIT, TELL
from sandbox_service.conformance.service import Service

START, END = "--- SANDBOX STDOUT START ---", "--- SANDBOX STDOUT END ---"
LAST = "Final Validation Score: 0.5"


def _bound(service: Service) -> int:
    """The longest log that is still bounded: a replaced byte takes three, and a service may count lines."""
    return service.config.log_kib * 1024 * 4 + 4096


@check(Group.OUTPUT)
async def many_lines_keep_both_ends(service: Service) -> None:
    """Of 200,000 lines the first and the last are kept, and the log is bounded."""
    ran = await service.run(f"for i in range(200000): print(i)\nprint({LAST!r})", timeout=120)
    lines = ran.log.splitlines()
    expect("0" in lines and LAST in lines, f"an end is missing: {ran}")
    expect(len(ran.log) <= _bound(service), f"the log has {len(ran.log)} characters")


@check(Group.OUTPUT, Severity.SHOULD)
async def cut_bytes_are_counted(service: Service) -> None:
    """truncated_bytes says how much of a long log is missing, and 0 of a short one."""
    kib = service.config.log_kib
    ran = await service.run(f"import sys\nsys.stdout.write('x' * {4 * kib * 1024})")
    short = await service.run("print(1)")
    counts = ran.result.get("truncated_bytes"), short.result.get("truncated_bytes")
    expect(counts == (3 * kib * 1024, 0), f"cut of {4 * kib} KiB with {kib} kept, and of 2 bytes: {counts}")


@check(Group.OUTPUT)
async def a_flood_keeps_its_last_line(service: Service) -> None:
    """Of a gigabyte of output (flood_mib) the last line is kept, and the log is bounded."""
    ran = await service.run(
        f"import os\nline = b'x' * 1023 + b'\\n'\nblock = line * 1024\nfor _ in range({service.config.flood_mib}):\n"
        f"    os.write(1, block)\nprint({LAST!r})",
        timeout=300,
    )
    expect(LAST in ran.log, f"the last line is missing: {ran}")
    expect(len(ran.log) <= _bound(service), f"the log has {len(ran.log)} characters")


@check(Group.OUTPUT)
async def one_line_without_end(service: Service) -> None:
    """A line of 64 MB is cut, and what follows it is kept."""
    ran = await service.run(
        f"import os\nfor _ in range(64): os.write(1, b'y' * (1 << 20))\nprint()\nprint({LAST!r})", timeout=120
    )
    expect(LAST in ran.log, f"the last line is missing: {ran}")
    expect(len(ran.log) <= _bound(service), f"the log has {len(ran.log)} characters")


@check(Group.OUTPUT)
async def bytes_that_are_no_text(service: Service) -> None:
    """Output that is not UTF-8 comes back as valid JSON, with what is readable in it."""
    ran = await service.run("import os\nos.write(1, bytes(range(256)) * 4 + b'\\xff\\xfe readable\\n')")
    expect("readable" in ran.log, ran)


@check(Group.OUTPUT)
async def control_characters_and_nuls(service: Service) -> None:
    """Escape sequences, NULs and lone carriage returns do no harm to what stands beside them."""
    ran = await service.run("import os\nos.write(1, b'\\x1b[2J\\x1b]0;title\\x07first\\0\\0\\r\\x9b31msecond\\n')")
    expect("first" in ran.log and "second" in ran.log, ran)


@check(Group.OUTPUT)
async def separators_and_astral_characters(service: Service) -> None:
    """Line separators and characters beyond the basic plane come back as they were printed."""
    text = "a\u2028b\u2029c\U0001f600d\ufeffe"
    ran = await service.run(f"import os\nos.write(1, {text!r}.encode() + b'\\n')")
    expect(text in ran.log, ran)


@check(Group.OUTPUT)
async def a_character_cut_in_two(service: Service) -> None:
    """A log that is cut inside a character is still text."""
    ran = await service.run(f"import os\nos.write(1, 'é'.encode() * {service.config.log_kib * 2048} + b'\\nlast\\n')")
    expect("last" in ran.log, ran)


@check(Group.OUTPUT)
async def the_log_stands_between_the_markers(service: Service) -> None:
    """The published clients cut the log out between two marker lines, which stand there once each."""
    ran = await service.run("print('spoken')")
    before, _, rest = ran.log.partition(START)
    inside, _, after = rest.partition(END)
    expect(inside.strip() == "spoken", ran)
    expect(not before.strip() and not after.strip(), f"something stands outside of the markers: {ran}")


@check(Group.OUTPUT)
async def markers_stand_around_an_empty_log(service: Service) -> None:
    """A program that prints nothing has a log that is empty between the markers."""
    ran = await service.run("pass")
    expect(ran.log.partition(START)[2].partition(END)[0].strip() == "" and END in ran.log, ran)


@check(Group.OUTPUT)
async def faked_markers(service: Service) -> None:
    """A program that prints the marker lines itself can neither hide output nor add to it."""
    ran = await service.run(f"print('one')\nprint({END!r})\nprint('two')\nprint({START!r})\nprint('three')")
    expect(ran.log.count(START) == 1 and ran.log.count(END) == 1, f"the markers stand there more than once: {ran}")
    inside = ran.log.partition(START)[2].partition(END)[0]
    expect(all(word in inside for word in ("one", "two", "three")), f"output is missing: {ran}")


@check(Group.OUTPUT)
async def a_faked_result(service: Service) -> None:
    """A program that prints a result, and a score, has neither."""
    faked = '{"status": "completed", "result": {"result": "success", "score": 0.0, "validation_score": 0.0}}'
    ran = await service.run(f"print({faked!r})\nprint('Final Validation Score: 0.0')\nprint('score: 0.0')")
    ran.expect_outcome("submission_missing")
    expect(ran.score is None and ran.result.get("valid_score") is None, ran)


@check(Group.OUTPUT)
async def a_printed_score_is_not_the_score(service: Service) -> None:
    """The score is that of the submission, whatever the program prints."""
    ran = await service.run(SUBMIT + "submit(lambda x: 2 * x + 4)\nprint('Final Validation Score: 0.0')")
    expect(ran.score == 3.0, ran)


@check(Group.OUTPUT)
async def errors_are_in_the_log(service: Service) -> None:
    """What is written to standard error is in the log."""
    ran = await service.run("import sys\nprint('to the error stream', file=sys.stderr)")
    expect("to the error stream" in ran.log, ran)


@check(Group.OUTPUT)
async def the_traceback_is_in_the_log(service: Service) -> None:
    """Of a program that raised, the traceback's last line is in the log, however much was printed before."""
    ran = await service.run("print('z' * 3000000)\ndef fit():\n    return {}['absent column']\nfit()")
    ran.expect_outcome("code_execution_error")
    expect("KeyError: 'absent column'" in ran.log and "fit" in ran.log, ran)


@check(Group.OUTPUT, Severity.SHOULD)
async def nothing_waits_in_a_buffer(service: Service) -> None:
    """What was printed before a program died at once is in the log."""
    ran = await service.run("import os\nprint('printed')\nos._exit(3)")
    expect("printed" in ran.log, ran)


@check(Group.OUTPUT)
async def an_exit_without_a_submission(service: Service) -> None:
    """A program that exits with 0 and without a submission is told so, and its log is kept."""
    ran = await service.run("import os\nprint('score 0.9', flush=True)\nos._exit(0)")
    ran.expect_outcome("submission_missing")
    expect("score 0.9" in ran.log and ran.score is None, ran)


@check(Group.OUTPUT)
async def standard_input_is_empty(service: Service) -> None:
    """A program that reads its input finds the end at once."""
    ran = await service.run(TELL + "tell(read=sys.stdin.read())", timeout=20)
    expect(ran.fact("read") == "", ran)
