"""A model on loopback that answers from a script: an OpenAI-compatible endpoint, with a log of what it was asked."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

STAGES = {
    "describe": "State one task",
    "propose": "Think of",
    "prepare": "Write `prepare.py`",
    "metric": "Write `metric.py`",
}


@dataclass(frozen=True)
class Trouble:
    """An answer with a status other than 200."""

    status: int = 500


@dataclass(frozen=True)
class Cut:
    """A reply that ends at the token limit."""

    text: str


Reply = str | Trouble | Cut


@dataclass
class Model:
    """The script, by stage, and what was asked."""

    script: dict[str, list[Reply]]
    prompts: list[tuple[str, str]] = field(default_factory=list)
    """Stage and the whole prompt, of the calls that were answered with a reply."""
    troubles: int = 0
    base_url: str = ""

    def asked(self, stage: str) -> list[str]:
        """The prompts of a stage."""
        return [text for each, text in self.prompts if each == stage]


@contextmanager
def serve_model(script: Mapping[str, Sequence[Reply]]) -> Iterator[Model]:
    """Serves it until the block ends. A stage's replies are given in turn; none is given twice."""
    model = Model({stage: list(replies) for stage, replies in script.items()})

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = "\n\n".join(message["content"] for message in body["messages"])
            stage = next(name for name, words in STAGES.items() if words in text)
            replies = model.script.get(stage, [])
            reply = replies.pop(0) if replies else Trouble(400)
            if isinstance(reply, Trouble):
                model.troubles += 1
                self.answer(reply.status, {"error": f"scripted trouble at {stage}"})
                return
            model.prompts.append((stage, text))
            cut = isinstance(reply, Cut)
            content = reply.text if isinstance(reply, Cut) else reply
            self.answer(
                200,
                {
                    "model": "scripted-1",
                    "choices": [
                        {
                            "message": {"role": "assistant", "content": content},
                            "finish_reason": "length" if cut else "stop",
                        }
                    ],
                    "usage": {"prompt_tokens": 1000, "completion_tokens": 100},
                },
            )

        def answer(self, status: int, content: object) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
