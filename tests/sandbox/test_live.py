"""What of a growing log is new."""

from hypothesis import given
from hypothesis import strategies as st
from openmle_gym.execute import LOG_END, LOG_START
from openmle_gym.isolation.logs import bounded_log
from openmle_gym.isolation.runner import BoundedLog
from openmle_gym.jobs import JobResult, Outcome
from sandbox_service.live import LogFollower, kept_output

LOG_BYTES = 32


def cut(output: bytes) -> BoundedLog:
    """What is kept of an output when 32 bytes may be."""
    half = LOG_BYTES // 2
    return bounded_log(output[:half], output[half:][-half:], len(output), LOG_BYTES)


@given(st.lists(st.text(st.sampled_from("ab\n"), max_size=30), max_size=8), st.booleans())
def test_pieces_and_gaps_put_together_are_the_output(parts: list[str], read_at_the_end_only: bool) -> None:
    follower = LogFollower(1)
    output = ""
    seen: list[str | None] = []
    for number, part in enumerate([*parts, ""]):
        output += part
        ended = number == len(parts)
        if ended or not read_at_the_end_only:
            for chunk in follower.advance(cut(output.encode()), ended=ended):
                assert chunk.attempt == 1
                seen += [None] * chunk.skipped_bytes + list(chunk.text)
    assert len(seen) == len(output)
    assert all(told in (real, None) for told, real in zip(seen, output, strict=True))
    assert None not in seen or len(output) > LOG_BYTES


def test_half_a_character_is_told_when_it_is_whole() -> None:
    follower = LogFollower(1)
    euro = "€".encode()
    (first,) = follower.advance(BoundedLog(head=(b"a" + euro[:2]).decode(errors="replace")), ended=False)
    (second,) = follower.advance(BoundedLog(head=(b"a" + euro + b"b").decode()), ended=False)
    assert (first.text, second.text) == ("a", "€b")
    assert follower.advance(BoundedLog(head="a€b"), ended=True) == []


def test_what_was_kept_is_found_again_in_a_result() -> None:
    def result(log: BoundedLog) -> JobResult:
        text = f"{LOG_START}\n{log.text}\n{LOG_END}\n"
        return JobResult(outcome=Outcome.SUCCESS, run_log=text, truncated_bytes=log.truncated_bytes)

    for log in (BoundedLog(head=""), BoundedLog(head="a\n"), BoundedLog(head="a\n", tail="\nb", truncated_bytes=7)):
        assert kept_output(result(log)) == log
