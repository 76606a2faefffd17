"""Any `ChatModel` behind an endpoint that speaks the chat part of OpenAI's protocol.

    GET  /v1/models
    POST /v1/chat/completions      messages, model, seed; one choice, not streamed

For tests of clients and for programs that only know such endpoints; it serves this machine, and few callers at once.
"""

import asyncio
import contextlib
import hmac
import itertools
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Literal, NamedTuple

from pydantic import ValidationError

from openmle_gym.chat import ChatModel, Completion, Message
from openmle_gym.contracts import ForeignContract
from openmle_gym.errors import ModelUnavailable

LOOPBACK = "127.0.0.1"
LARGEST_BODY_BYTES = 16 * 1024 * 1024

logger = logging.getLogger(__name__)


class _TextPart(ForeignContract):
    type: Literal["text"]
    text: str


class _ChatMessage(ForeignContract):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_TextPart]

    def plain(self) -> Message:
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return Message(role="system" if self.role == "developer" else self.role, content=text)


class _ChatRequest(ForeignContract):
    model: str
    messages: list[_ChatMessage]
    seed: int | None = None
    n: Literal[1] = 1
    stream: Literal[False] = False


class _Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class _Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(
        self, status: HTTPStatus, kind: str, message: str, *, code: str | None = None, param: str | None = None
    ):
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@asynccontextmanager
async def serve_policy(
    policy: ChatModel, *, model: str = "recipes", api_key: str | None = None, host: str = LOOPBACK, port: int = 0
) -> AsyncIterator[str]:
    """Serves the policy while the context lasts; gives the base URL, such as `http://127.0.0.1:40123/v1`.

    Args:
        model: The name that requests must ask for.
        api_key: The bearer token that requests must carry; None lets every request in.
        port: 0 for any free one.
    """
    endpoint = _Endpoint(policy, model=model, api_key=api_key)
    server = await asyncio.start_server(endpoint.connection, host, port)
    try:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        await endpoint.close()
        await server.wait_closed()


class _Endpoint:
    def __init__(self, policy: ChatModel, *, model: str, api_key: str | None) -> None:
        self._policy = policy
        self._model = model
        self._api_key = api_key
        self._numbers = itertools.count(1)
        self._connections: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Ends all connections."""
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the caller hung up
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers one request; False when the connection should end."""
        keep = True
        try:
            request = await _read_request(reader)
            if request is None:
                return False
            keep = request.headers.get("connection", "").lower() != "close"
            status, body = HTTPStatus.OK, await self._route(request)
        except _Refusal as refusal:
            status, body = refusal.status, refusal.body
            keep = keep and status is not HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        content = json.dumps(body, ensure_ascii=False).encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: {'keep-alive' if keep else 'close'}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        await writer.drain()
        return keep

    async def _route(self, request: _Request) -> dict[str, object]:
        if self._api_key is not None:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._api_key.encode()):
                message = "Missing or wrong API key."
                raise _Refusal(HTTPStatus.UNAUTHORIZED, "invalid_request_error", message, code="invalid_api_key")
        if request.path == "/v1/models" and request.method == "GET":
            return {
                "object": "list",
                "data": [{"id": self._model, "object": "model", "created": 0, "owned_by": "openmle"}],
            }
        if request.path == "/v1/chat/completions" and request.method == "POST":
            return await self._complete(request.body)
        raise _Refusal(
            HTTPStatus.NOT_FOUND,
            "invalid_request_error",
            f"Unknown request: {request.method} {request.path}",
            code="not_found",
        )

    async def _complete(self, body: bytes) -> dict[str, object]:
        try:
            chat = _ChatRequest.model_validate_json(body)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or None
            message = f"{where or 'body'}: {first['msg']}"
            raise _Refusal(HTTPStatus.BAD_REQUEST, "invalid_request_error", message, param=where) from error
        if chat.model != self._model:
            message = f"The model {chat.model!r} does not exist; there is {self._model!r}."
            raise _Refusal(
                HTTPStatus.NOT_FOUND, "invalid_request_error", message, code="model_not_found", param="model"
            )
        try:
            completion = await self._policy.complete([message.plain() for message in chat.messages], seed=chat.seed)
        except ModelUnavailable as error:
            raise _Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "server_error", str(error), code="unavailable") from error
        except ValueError as error:
            raise _Refusal(HTTPStatus.BAD_REQUEST, "invalid_request_error", str(error), param="messages") from error
        except Exception as error:
            logger.exception("the policy failed")
            raise _Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "server_error", "The policy failed.") from error
        return self._chat_completion(completion)

    def _chat_completion(self, completion: Completion) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": completion.text}
        if completion.reasoning:
            message["reasoning_content"] = completion.reasoning
        usage = completion.usage
        return {
            "id": f"chatcmpl-{next(self._numbers)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": [{"index": 0, "message": message, "finish_reason": completion.finish_reason, "logprobs": None}],
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
        }


async def _read_request(reader: asyncio.StreamReader) -> _Request | None:
    """The next request of a connection; None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise
    except asyncio.LimitOverrunError as error:
        raise _Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "invalid_request_error", "The head is too long.") from error
    request_line, *lines = head.decode("latin-1").rstrip().split("\r\n")
    words = request_line.split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length", "0")
    if len(words) != 3 or not length.isdigit() or "transfer-encoding" in headers:
        raise _Refusal(HTTPStatus.BAD_REQUEST, "invalid_request_error", "Not a request that this endpoint reads.")
    if int(length) > LARGEST_BODY_BYTES:
        message = f"The body is longer than {LARGEST_BODY_BYTES} bytes."
        raise _Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "invalid_request_error", message)
    body = await reader.readexactly(int(length))
    return _Request(words[0], words[1].partition("?")[0], headers, body)
