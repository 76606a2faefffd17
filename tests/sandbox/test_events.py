"""Following a job by server-sent events: what is told, where a client goes on, and when it ends."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sandbox.make import KEYS, HeldRunner, http, serving
from sandbox.service import Service, running_service, until
from sandbox_service.events import Position, Resumed
from sandbox_service.records import LogChunk

JOB = {"code": "pass", "data_dir": "tiny"}
HOSTILE = "a\n\nevent: end\ndata: {}\n\nid: 9:9\r\n\u2028\x00"


def events(lines: Iterator[str]) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Id, kind and data of each event of a stream, read as the standard says."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            if "event" in fields:
                yield fields["id"], fields["event"], json.loads(fields["data"])
            fields = {}


def lines(response: httpx.Response) -> Iterator[str]:
    """Lines as an event stream has them; Python's own splitlines knows more ends of lines."""
    waiting = ""
    for text in response.iter_text():
        *ended, waiting = (waiting + text).split("\n")
        yield from ended


async def test_a_finished_jobs_stream_tells_output_state_and_end(tmp_path: Path) -> None:
    async with serving(tmp_path, HeldRunner()) as app, http(app) as client:
        path = "/api/v1/jobs/" + (await client.post("/api/v1/jobs", json=JOB)).json()["job_id"]
        view = (await client.get(f"{path}?wait=60")).json()
        answer = await client.get(f"{path}/events")
        told = list(events(iter(answer.text.split("\n"))))
        again = await client.get(f"{path}/events", headers={"Last-Event-ID": told[-1][0]})
        rest = await client.get(f"{path}/events", headers={"Last-Event-ID": "1:2"})
    view["result"]["run_log"] = ""
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert told == [
        ("1:6", "log", {"text": "hello\n", "skipped_bytes": 0, "attempt": 1}),
        ("1:6", "state", view),
        ("end", "end", {}),
    ]
    assert (again.status_code, again.content) == (204, b"")
    assert next(events(iter(rest.text.split("\n"))))[2]["text"] == "llo\n"


async def test_a_stream_shows_no_test_score_below_grade(tmp_path: Path) -> None:
    async with serving(tmp_path, HeldRunner(), secret=KEYS) as app, http(app, "gr4de") as client:
        body = JOB | {"code": "", "eval_split": "both"}
        path = "/api/v1/jobs/" + (await client.post("/api/v1/jobs", json=body)).json()["job_id"]
        await client.get(f"{path}?wait=60")
        told = {
            key: (await client.get(f"{path}/events", headers={"X-API-Key": key})).text for key in ("gr4de", "s3cret")
        }
    assert '"test_score":null' in told["s3cret"]
    assert list(told["s3cret"]) == list(told["gr4de"])


@given(st.lists(st.tuples(st.integers(0, 3), st.text("aé𝄞\n", min_size=1)), max_size=6))
def test_a_client_that_comes_back_reads_on_where_it_was(parts: list[tuple[int, str]]) -> None:
    chunks = [LogChunk(text=text, skipped_bytes=skipped, attempt=1) for skipped, text in parts]

    def output(had: Position, chunks: list[LogChunk]) -> tuple[bytes, Position]:
        """What is sent, with a question mark for a byte that was cut, and where that leads to."""
        resumed = Resumed(had)
        pieces = [piece for chunk in chunks if (piece := resumed.piece(chunk))]
        return b"".join(b"?" * piece.skipped_bytes + piece.text.encode() for piece in pieces), resumed.position

    whole, _ = output(Position(0, 0), chunks)
    assert whole == b"".join(b"?" * skipped + text.encode() for skipped, text in parts)
    for number in range(len(chunks) + 1):
        seen, had = output(Position(0, 0), chunks[:number])
        assert (seen, had.bytes_sent) == (whole[: had.bytes_sent], len(seen))
        assert output(had, chunks)[0] == whole[had.bytes_sent :]


def test_output_of_another_start_is_told_from_its_beginning() -> None:
    resumed = Resumed(Position(1, 100))
    piece = resumed.piece(LogChunk(text="anew", skipped_bytes=0, attempt=2))
    assert piece is not None
    assert (piece.text, piece.attempt, resumed.position) == ("anew", 2, Position(2, 4))


@pytest.mark.parametrize(
    ("event_id", "position"),
    [
        (None, (0, 0)),
        ("", (0, 0)),
        ("2:17", (2, 17)),
        ("2:17x", (0, 0)),
        ("-1:3", (0, 0)),
        ("1:" + "9" * 30, (0, 0)),
        ("\u0661:\u0662", (1, 2)),
    ],
)
def test_an_id_that_is_none_of_ours_means_the_start(event_id: str | None, position: tuple[int, int]) -> None:
    assert Position.parse(event_id) == position


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.mark.slow
def test_output_is_told_as_it_comes_and_a_new_connection_goes_on(service: Service) -> None:
    code = service.held("gate", first=f"print({HOSTILE!r}, end='')\n", last="print('last')\n")
    with service.client() as client:
        path = "/api/v1/jobs/" + client.post("/api/v1/jobs", json=JOB | {"code": code}).json()["job_id"]
        told, text, last_id = [], "", ""
        with client.stream("GET", f"{path}/events") as response:
            for event_id, kind, data in events(lines(response)):
                told.append(kind)
                text += str(data["text"]) if kind == "log" else ""
                last_id = event_id
                if "begun" in text:
                    break
        assert "end" not in told
        service.open_gate("gate")
        with client.stream("GET", f"{path}/events", headers={"Last-Event-ID": last_id}) as response:
            rest = list(events(lines(response)))
    text += "".join(str(data["text"]) for _, kind, data in rest if kind == "log")
    assert text == f"{HOSTILE}begun\nlet go\nlast\n"
    assert [kind for _, kind, _ in rest][-2:] == ["state", "end"]
    assert rest[-2][2]["status"] == "completed"


@pytest.mark.slow
def test_a_stream_ends_soon_after_a_cancel_and_with_the_service(tmp_path: Path) -> None:
    with running_service(tmp_path, "drain_seconds=0") as service, service.client() as client:
        held = JOB | {"code": service.held("never")}
        cancelled, kept = ["/api/v1/jobs/" + client.post("/api/v1/jobs", json=held).json()["job_id"] for _ in range(2)]
        with client.stream("GET", f"{cancelled}/events") as response:
            told = events(lines(response))
            next(told)
            service.client().delete(cancelled)
            rest = list(told)
        assert (rest[-2][2]["status"], rest[-1][1]) == ("cancelled", "end")
        with client.stream("GET", f"{kept}/events") as response:
            told = events(lines(response))
            next(told)
            service.process.terminate()
            began = time.monotonic()
            rest = list(told)
            until(lambda: service.process.poll() is not None)
        assert time.monotonic() - began < 30
        assert "end" not in [kind for _, kind, _ in rest]
        assert service.process.returncode == 0
        assert "Traceback" not in service.log()
