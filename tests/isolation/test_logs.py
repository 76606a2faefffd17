import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st
from openmle_gym.isolation import logs, supervisor

BUDGET = 16
chunks_of_bytes = st.lists(st.binary(max_size=40), max_size=12)
chunks_of_ascii = st.lists(st.text("abc\n", max_size=40).map(str.encode), max_size=12)


@contextmanager
def record_file(log_bytes: int = BUDGET) -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.truncate(logs.record_bytes(log_bytes))
        yield file.fileno()


def log_of(chunks: list[bytes], log_bytes: int = BUDGET):
    with record_file(log_bytes) as descriptor:
        writer = supervisor.Record(descriptor, log_bytes)
        for chunk in chunks:
            writer.feed(chunk)
        return logs.read_record(descriptor, log_bytes).log


def test_short_output_is_kept_whole_in_the_head():
    log = log_of([b"one\n", b"two\n"])
    assert (log.head, log.tail, log.truncated_bytes) == ("one\ntwo\n", "", 0)


def test_long_output_keeps_both_ends_and_counts_what_is_gone():
    log = log_of([b"0123456789" * 3])
    # 30 bytes, 8 kept at each end.
    assert (log.head, log.tail, log.truncated_bytes) == ("01234567", "23456789", 14)
    assert log.text == "01234567\n[... 14 bytes cut ...]\n23456789"


@given(chunks_of_ascii)
def test_whatever_the_chunks_the_ends_are_the_ends_of_the_output(chunks: list[bytes]):
    output, log = b"".join(chunks), log_of(chunks)
    if len(output) <= BUDGET:
        assert (log.head, log.tail, log.truncated_bytes) == (output.decode(), "", 0)
    else:
        assert log.head == output[:8].decode()
        assert log.tail == output[-8:].decode()
        assert log.truncated_bytes == len(output) - 16


@given(chunks_of_bytes, st.integers(2, 40))
def test_whatever_is_printed_the_text_fits_the_budget(chunks: list[bytes], log_bytes: int):
    log = log_of(chunks, log_bytes)
    assert len(log.head.encode()) + len(log.tail.encode()) <= log_bytes
    assert 0 <= log.truncated_bytes <= sum(map(len, chunks))


@given(chunks_of_bytes)
def test_the_file_never_grows(chunks: list[bytes]):
    with record_file() as descriptor:
        writer = supervisor.Record(descriptor, BUDGET)
        for chunk in chunks:
            writer.feed(chunk)
        assert os.fstat(descriptor).st_size == logs.record_bytes(BUDGET)


@given(chunks_of_ascii)
def test_a_writer_killed_between_two_chunks_leaves_a_true_record(chunks: list[bytes]):
    with record_file() as descriptor:
        writer = supervisor.Record(descriptor, BUDGET)
        so_far = b""
        for chunk in chunks:
            writer.feed(chunk)
            so_far += chunk
            record = logs.read_record(descriptor, BUDGET)
            assert (record.started, record.exit_code, record.signal) == (True, None, None)
            assert record.log.head.startswith(so_far[:8].decode())
            assert (record.log.head + record.log.tail).endswith(so_far[-8:].decode())


def test_output_that_is_not_text_becomes_replacement_characters():
    assert log_of([b"\xff\xfe ok\n"]).head == "\ufffd\ufffd ok\n"


def test_a_character_split_between_two_chunks_stays_whole():
    assert log_of(["né".encode()[:2], "né".encode()[2:]]).head == "né"


def test_a_character_split_between_head_and_tail_stays_whole_when_nothing_was_cut():
    # Bytes 7 and 8 are one character; the head ends after byte 7.
    assert log_of(["aaaaaaaébb".encode()]).head == "aaaaaaaébb"


def test_a_character_that_was_cut_in_two_costs_no_more_than_itself():
    log = log_of([b"aaaaaa" + "€".encode() + b"x" * 20])
    # Two of the character's three bytes reach the head and would be a replacement of three bytes, one too many.
    assert log.head == "aaaaaa\ufffd"[:6]
    assert log.tail == "xxxxxxxx"
    assert log.truncated_bytes == 29 - 6 - 8


@given(st.binary(max_size=200))
def test_a_record_of_any_bytes_can_be_read(garbage: bytes):
    with record_file() as descriptor:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, garbage, 0)
        record = logs.read_record(descriptor, BUDGET)
        assert len(record.log.head) + len(record.log.tail) <= BUDGET


def test_a_record_tells_how_the_program_ended():
    with record_file() as descriptor:
        assert not logs.has_started(descriptor)
        writer = supervisor.Record(descriptor, BUDGET)
        writer.write_header(3 << 8, supervisor.ENDED)
        assert (logs.read_record(descriptor, BUDGET).exit_code, logs.read_record(descriptor, BUDGET).signal) == (
            3,
            None,
        )
        writer.write_header(11, supervisor.ENDED)
        assert (logs.read_record(descriptor, BUDGET).exit_code, logs.read_record(descriptor, BUDGET).signal) == (
            None,
            11,
        )
