"""A small server of ours for small models on this machine, which speaks the part of SGLang's protocol that `sglang` uses.

    GET  /health                            open
    POST /generate                          the API key
    GET  /model_info, /v1/models            the API key
    POST /v1/chat/completions               the API key; not streamed
    POST /pause_generation, /continue_generation, /abort_request, /flush_cache                   the admin key
    POST /update_weights_from_disk, /init_weights_update_group, /destroy_weights_update_group    the admin key
    POST /update_weights_from_distributed                                                        the admin key

What differs: routes of the second kind are closed, not open, without an admin key; weights that come while nothing is paused
are in force from the next token on, as if paused in place; nothing is cached across requests, so flushing only
checks that none is running.
"""

import asyncio
import contextlib
import hmac
import itertools
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from openmle_gym.contracts import ForeignContract
from openmle_gym.errors import ConfigError, InfrastructureError
from pydantic import SecretStr, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from openmle_erl.engines import wire
from openmle_erl.engines.generator import Generator, load_model
from openmle_erl.engines.generator_thread import GeneratorThread
from openmle_erl.engines.protocols import Finish, GenerateRequest, Generation, Sampling
from openmle_erl.engines.routing_wire import routing_shape
from openmle_erl.engines.sglang_wire import read_version
from openmle_erl.engines.weight_group import TensorFacts, open_weight_group, receive_weights
from openmle_erl.rl.conversation import Budget, TooLong, completion_of, encode_prompt, end_ids, room_for_reply
from openmle_erl.sft.tokens import ChatTokenizer

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

HUNG_UP_SECONDS = 0.5
"""Between two looks whether a caller is still there."""

Body = TypeVar("Body", bound=ForeignContract)
Handler = Callable[[Request], Awaitable[Response]]

logger = logging.getLogger(__name__)


class Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class LocalServer:
    """The routes, over one model. `app` is an ASGI application; its lifespan starts and ends the generator."""

    def __init__(
        self,
        folder: Path,
        *,
        tokenizer: ChatTokenizer,
        api_key: SecretStr | None,
        admin_key: SecretStr | None,
        name: str | None = None,
        max_running: int = 64,
        device: str = "cpu",
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        """Args:
        api_key: None lets everybody generate.
        admin_key: None closes the routes that need it.
        name: Of the model in OpenAI's protocol; by default that of its folder.
        on_ready: Called once requests are answered.
        """
        self._on_ready = on_ready
        self._folder = folder
        self._device = device
        self._name = name or folder.resolve().name
        self._tokenizer = tokenizer
        self._keys = {False: api_key, True: admin_key}
        model = load_model(folder, device=device)
        self._context_tokens = int(model.config.max_position_embeddings)
        try:
            self._routing = routing_shape(folder)
        except ConfigError:
            self._routing = None
        ends = model.generation_config.eos_token_id if model.generation_config else model.config.eos_token_id
        self._ends = frozenset([*(ends if isinstance(ends, list) else [ends]), *end_ids(tokenizer)]) - {None}
        self._generator = Generator(model, max_running=max_running)
        self._thread = GeneratorThread(self._generator)
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._groups: dict[str, ProcessGroup] = {}
        self._open: set[str] = set()
        self._numbers = itertools.count(1)
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/generate", self._guard(self._generate), methods=["POST"]),
                Route("/model_info", self._guard(self._model_info)),
                Route("/v1/models", self._guard(self._models)),
                Route("/v1/chat/completions", self._guard(self._chat), methods=["POST"]),
                *(
                    Route(path, self._guard(handler, admin=True), methods=["POST"])
                    for path, handler in {
                        "/pause_generation": self._pause,
                        "/continue_generation": self._continue,
                        "/abort_request": self._abort,
                        "/flush_cache": self._flush,
                        "/update_weights_from_disk": self._from_disk,
                        "/init_weights_update_group": self._join,
                        "/destroy_weights_update_group": self._leave,
                        "/update_weights_from_distributed": self._from_group,
                    }.items()
                ),
            ],
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with self._thread:
            if self._on_ready:
                self._on_ready()
            yield

    def _guard(self, handler: Handler, *, admin: bool = False) -> Handler:
        """The handler behind its key, its refusals as SGLang words them."""

        async def guarded(request: Request) -> Response:
            key = self._keys[admin]
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if key is None and admin:
                return _error(403, "this server was started without an admin key")
            if key is not None and not hmac.compare_digest(given.encode(), key.get_secret_value().encode()):
                return _error(401, "Unauthorized")
            try:
                return await handler(request)
            except Refusal as refusal:
                return _error(refusal.status, str(refusal))
            except InfrastructureError as error:
                return _error(500, str(error))

        return guarded

    async def _health(self, request: Request) -> Response:
        return Response(status_code=200 if self._thread.failure is None else 503)

    async def _generate(self, request: Request) -> Response:
        body = await _read(request, wire.GenerateBody)
        if (body.input_ids is None) == (body.text is None):
            raise Refusal(400, "give input_ids or text, for one prompt")
        prompt = body.input_ids if body.input_ids is not None else tuple(self._tokenizer.encode(body.text or ""))
        wanted = wire.generate_request(body, body.rid or uuid.uuid4().hex, prompt, self._routing)
        if body.return_routed_experts and self._routing is None:
            raise Refusal(400, "return_routed_experts: this model has not got experts in every layer")
        self._check_length(wanted)
        generation = await self._answer(request, wanted, ends=not body.sampling_params.ignore_eos)
        text = self._tokenizer.decode(generation.token_ids)
        if body.sampling_params.skip_special_tokens and generation.finish is Finish.STOP:
            text = self._tokenizer.decode(generation.token_ids[:-1])
        version = wire.version_name(self._generator.version)
        return JSONResponse(
            wire.generate_reply(
                generation, prompt_tokens=len(prompt), version=version, text=text, logprobs=body.return_logprob
            )
        )

    def _check_length(self, request: GenerateRequest) -> None:
        wanted = len(request.prompt_ids) + request.sampling.max_new_tokens
        if not request.prompt_ids or wanted > self._context_tokens:
            raise Refusal(
                400,
                f"{len(request.prompt_ids)} prompt tokens and {request.sampling.max_new_tokens} new ones: must be at "
                f"least one and together at most the model's context of {self._context_tokens}",
            )
        vocabulary = self._generator.model.config.vocab_size
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < vocabulary:
            raise Refusal(400, f"input_ids: the vocabulary has ids 0 to {vocabulary - 1}")

    async def _answer(self, request: Request, wanted: GenerateRequest, *, ends: bool = True) -> Generation:
        """Generates; a caller that hangs up has its request aborted."""
        await self._resumed.wait()
        if wanted.request_id in self._open:
            raise Refusal(400, f"Duplicate request ID detected: {wanted.request_id}")
        self._open.add(wanted.request_id)
        stops = {*wanted.sampling.stop_token_ids, *(self._ends if ends else ())}
        work = asyncio.create_task(self._thread.generate(wanted, stop_ids=stops))
        try:
            while not (await asyncio.wait({work}, timeout=HUNG_UP_SECONDS))[0]:
                if await request.is_disconnected():
                    raise Refusal(499, "the caller hung up")
            return work.result()
        finally:
            work.cancel()
            self._open.discard(wanted.request_id)

    async def _chat(self, request: Request) -> Response:
        body = await _read(request, wire.ChatBody)
        if not body.messages:
            raise Refusal(400, "messages: there is none")
        prompt = encode_prompt(self._tokenizer, [message.plain() for message in body.messages])
        wanted = body.max_completion_tokens or body.max_tokens or self._context_tokens
        room = room_for_reply(prompt, Budget(self._context_tokens, wanted))
        if isinstance(room, TooLong):
            raise Refusal(400, f"messages: {room.tokens} tokens; at most {room.limit} leave room for a reply")
        sampling = Sampling(
            max_new_tokens=room, temperature=body.temperature, top_p=body.top_p, top_k=body.top_k if body.top_k else -1
        )
        asked = GenerateRequest(request_id=uuid.uuid4().hex, prompt_ids=prompt.ids, sampling=sampling, seed=body.seed)
        generation = await self._answer(request, asked)
        if generation.finish is Finish.ABORT:
            raise Refusal(503, "generation was paused; ask again")
        completion = completion_of(self._tokenizer, prompt, generation, ends=self._ends, model=self._name)
        return JSONResponse(wire.chat_reply(completion, number=next(self._numbers)))

    async def _models(self, request: Request) -> Response:
        card = {"id": self._name, "object": "model", "created": 0, "owned_by": "openmle"}
        return JSONResponse({"object": "list", "data": [card]})

    async def _model_info(self, request: Request) -> Response:
        config = self._generator.model.config
        return JSONResponse(
            {
                "model_path": str(self._folder),
                "served_model_name": self._name,
                "tokenizer_path": str(self._folder),
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": wire.version_name(self._generator.version),
                "load_format": "auto",
                "model_type": config.model_type,
                "architectures": config.architectures,
            }
        )

    async def _pause(self, request: Request) -> Response:
        mode = (await _read(request, wire.PauseBody)).mode
        self._resumed.clear()
        await self._thread.ask(lambda generator: generator.pause(mode))
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: Request) -> Response:
        await self._thread.ask(Generator.resume)
        self._resumed.set()
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    async def _abort(self, request: Request) -> Response:
        body = await _read(request, wire.AbortBody)
        if not body.rid and not body.abort_all:
            raise Refusal(400, "give rid or abort_all")
        await self._thread.ask(lambda generator: generator.abort(None if body.abort_all else body.rid))
        return Response(status_code=200)

    async def _flush(self, request: Request) -> Response:
        running = await self._thread.ask(lambda generator: generator.running)
        if running:
            return PlainTextResponse(f"Flush cache failed: {running} requests are running.", status_code=400)
        return PlainTextResponse("Cache flushed.")

    async def _from_disk(self, request: Request) -> Response:
        body = await _read(request, wire.DiskBody)
        folder, version = Path(body.model_path), self._version(body.weight_version)
        try:
            # Read whole before anything is replaced: a folder that is broken changes nothing.
            model = await asyncio.to_thread(load_model, folder, device=self._device)
            await self._thread.ask(lambda generator: generator.replace_model(model, version))
        except (ConfigError, ValueError) as error:
            return JSONResponse({"success": False, "message": str(error), "num_paused_requests": 0}, status_code=400)
        self._folder = folder
        return JSONResponse({"success": True, "message": f"Weight version {version}.", "num_paused_requests": 0})

    async def _join(self, request: Request) -> Response:
        body = await _read(request, wire.GroupBody)
        try:
            self._groups[body.group_name] = await asyncio.to_thread(
                open_weight_group,
                address=body.master_address,
                port=body.master_port,
                rank=body.rank_offset,
                world_size=body.world_size,
                backend=body.backend,
                group=body.group_name,
            )
        except (RuntimeError, ValueError) as error:  # torch.distributed's
            return JSONResponse({"success": False, "message": str(error)}, status_code=400)
        return JSONResponse({"success": True, "message": f"Joined as rank {body.rank_offset}."})

    async def _leave(self, request: Request) -> Response:
        body = await _read(request, wire.LeaveBody)
        if self._groups.pop(body.group_name, None) is None:
            return JSONResponse({"success": False, "message": f"no group {body.group_name!r}"}, status_code=400)
        return JSONResponse({"success": True, "message": "Left."})

    async def _from_group(self, request: Request) -> Response:
        body = await _read(request, wire.TensorsBody)
        version = self._version(body.weight_version)
        if (group := self._groups.get(body.group_name)) is None:
            return JSONResponse({"success": False, "message": f"no group {body.group_name!r}"}, status_code=400)
        facts = TensorFacts(body.names, body.dtypes, body.shapes)
        device = self._generator.model.device
        try:
            tensors = await asyncio.to_thread(receive_weights, group, facts, device)
            await self._thread.ask(lambda generator: generator.replace_tensors(tensors, version))
        except (RuntimeError, ValueError, AttributeError) as error:
            return JSONResponse({"success": False, "message": str(error)}, status_code=400)
        return JSONResponse({"success": True, "message": f"Weight version {version}."})

    def _version(self, name: str | None) -> int:
        """The version that an update gives to the weights; without a name they keep theirs."""
        return self._generator.version if name is None else read_version(name)


async def _read(request: Request, kind: type[Body]) -> Body:
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors()[0]
        raise Refusal(400, f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}") from error


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "code": status}}, status_code=status)
