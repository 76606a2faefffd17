"""Generating over HTTP, by the protocol of SGLang 0.5.23: one engine. `router` holds several.

Two keys are sent, always: one with requests for tokens and facts, another with those that steer an engine or replace its
weights. Such routes of a server that was started without an admin key would be open to everybody who has the first.

Machinery that fails raises `InfrastructureError`. A request that the server refuses for what it says (a prompt longer than
the context) raises ConfigError: repeating it is of no use. Neither ever looks like a generation.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import httpx
from openmle_gym.contracts import one_line
from openmle_gym.errors import ConfigError, ModelUnavailable
from openmle_gym.retry import retrying
from pydantic import JsonValue, SecretStr, ValidationError

from openmle_erl.engines.protocols import GenerateRequest, Generation, PauseMode
from openmle_erl.engines.sglang_wire import REFUSED, ModelInfo, Success, generate_body, read_generation, read_version

ABORT_SECONDS = 5.0
"""How long an engine may take to hear that nobody waits for a request any more."""


class SGLangEngine:
    """A `RolloutEngine`: a server that speaks SGLang's protocol. Use as an async context manager."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: SecretStr,
        admin_key: SecretStr,
        patience_seconds: float = 30.0,
        generate_seconds: float = 3600.0,
        weights_seconds: float = 900.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Args:
        patience_seconds: How long a server that does not answer, or says that it is overloaded, is asked again.
        generate_seconds: How long one generation may take, pauses included.
        weights_seconds: How long replacing the weights may take.
        """
        self.base_url = base_url.rstrip("/")
        self._keys = {False: api_key, True: admin_key}
        self._patience_seconds = patience_seconds
        self._generate_seconds = generate_seconds
        self._weights_seconds = weights_seconds
        self._mode: PauseMode | None = None
        self._http = httpx.AsyncClient(
            base_url=self.base_url,
            timeout=httpx.Timeout(60.0, connect=10.0),
            transport=transport,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends all connections."""
        await self._http.aclose()

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `RolloutEngine`. Cancelling this call aborts the request at the server.

        Raises:
            ModelUnavailable: The server cannot be reached, failed, or answered something else than a generation.
            ConfigError: It refuses the request.
        """
        attempts = itertools.count()
        names: list[str] = []

        async def call() -> httpx.Response:
            # A server that still works on the first attempt refuses a second one of the same name.
            attempt = next(attempts)
            names.append(request.request_id if attempt == 0 else f"{request.request_id}.{attempt}")
            body = generate_body(request, names[-1])
            try:
                return await self._once("POST", "/generate", body, seconds=self._generate_seconds)
            except httpx.HTTPStatusError as error:
                if error.response.status_code in REFUSED:
                    raise ConfigError(f"{self.base_url}/generate: refused: {error.response.text[:500]}") from error
                raise

        try:
            response = await self._patiently(call, "/generate")
        except asyncio.CancelledError:
            await self._abort_quietly(names)
            raise
        return read_generation(response.content, request, place=f"{self.base_url}/generate")

    async def pause(self, mode: PauseMode) -> None:
        """See `RolloutEngine`."""
        await self._control("/pause_generation", {"mode": mode.value})
        self._mode = mode

    async def load_weights(self, folder: Path, version: int) -> None:
        """See `RolloutEngine`. Then forgets what it knows of prompts under the old weights; a pause in place keeps that,
        by its nature, for the requests that go on."""
        body: dict[str, JsonValue] = {
            "model_path": str(folder),
            "weight_version": str(version),
            "flush_cache": False,
            "abort_all_requests": False,
        }
        await self._control("/update_weights_from_disk", body, seconds=self._weights_seconds)
        await self._forget()

    async def resume(self) -> None:
        """See `RolloutEngine`."""
        await self._control("/continue_generation", {})
        self._mode = None

    async def version(self) -> int:
        """See `RolloutEngine`."""
        await self.check_health()
        return read_version((await self.model_info()).weight_version)

    async def check_health(self) -> None:
        """Asks once whether the server works.

        Raises:
            ModelUnavailable: It does not.
        """
        try:
            await self._once("GET", "/health", None, seconds=10.0)
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            raise ModelUnavailable(f"{self.base_url}/health: {type(error).__name__}: {error}") from error

    async def model_info(self) -> "ModelInfo":
        """What the server says of its model."""
        response = await self._patiently(lambda: self._once("GET", "/model_info", None), "/model_info")
        try:
            return ModelInfo.model_validate_json(response.content)
        except ValidationError as error:
            raise ModelUnavailable(f"{self.base_url}/model_info: {one_line(error)}") from error

    async def flush_cache(self) -> None:
        """Forgets what is cached of prompts.

        Raises:
            ModelUnavailable: Requests are running.
        """
        await self._control("/flush_cache", {})

    async def abort(self, request_id: str) -> None:
        """Ends one request, which is answered with what it has."""
        await self._control("/abort_request", {"rid": request_id, "abort_all": False})

    async def join_weight_group(
        self, *, address: str, port: int, rank: int, world_size: int, backend: Literal["nccl", "gloo"], group: str
    ) -> None:
        """Has the server's first process join, as `rank`, the process group through which weights are broadcast from
        rank 0 (`weight_group.open_weight_group`). Returns when all have joined."""
        body: dict[str, JsonValue] = {
            "master_address": address,
            "master_port": port,
            "rank_offset": rank,
            "world_size": world_size,
            "group_name": group,
            "backend": backend,
        }
        await self._control("/init_weights_update_group", body, seconds=self._weights_seconds, repeat=False)

    async def receive_weights(
        self, *, names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]], version: int, group: str
    ) -> None:
        """Has the server receive these tensors, in this order, from rank 0 of the group; the sender broadcasts them
        meanwhile (`weight_group.send_weights`)."""
        body: dict[str, JsonValue] = {
            "names": list(names),
            "dtypes": list(dtypes),
            "shapes": [list(shape) for shape in shapes],
            "group_name": group,
            "weight_version": str(version),
            "flush_cache": False,
            "abort_all_requests": False,
        }
        path = "/update_weights_from_distributed"
        await self._control(path, body, seconds=self._weights_seconds, repeat=False)
        await self._forget()

    async def leave_weight_group(self, group: str) -> None:
        """Leaves the group."""
        await self._control("/destroy_weights_update_group", {"group_name": group}, repeat=False)

    async def take_weights(self, serialized: Sequence[str], version: int, *, load_format: str | None = None) -> None:
        """Replaces the weights by tensors in the memory of this machine or of a GPU that both sides see.

        Args:
            serialized: One for each rank of the server's tensor parallelism: named tensors as SGLang's
                `MultiprocessingSerializer` writes them, in base64.
        """
        body: dict[str, JsonValue] = {
            "serialized_named_tensors": list(serialized),
            "load_format": load_format,
            "weight_version": str(version),
            "flush_cache": False,
            "abort_all_requests": False,
        }
        await self._control("/update_weights_from_tensor", body, seconds=self._weights_seconds)
        await self._forget()

    async def release_memory(self) -> None:
        """Gives the GPU's memory to somebody else; nothing may be running, and nothing can be asked until `reclaim_memory`.
        The server must have been started with --enable-memory-saver."""
        await self._control("/release_memory_occupation", {}, seconds=self._weights_seconds, repeat=False)

    async def reclaim_memory(self) -> None:
        """Takes it again. The weights are undefined until they are loaded."""
        await self._control("/resume_memory_occupation", {}, seconds=self._weights_seconds, repeat=False)

    async def _forget(self) -> None:
        if self._mode is not PauseMode.IN_PLACE:
            await self.flush_cache()

    async def _abort_quietly(self, names: Sequence[str]) -> None:
        """Tells the server that nobody waits for these any more; a server that is gone has none of them."""
        for name in names[-1:]:
            try:
                body: dict[str, JsonValue] = {"rid": name, "abort_all": False}
                await self._once("POST", "/abort_request", body, seconds=ABORT_SECONDS, admin=True)
            except (httpx.TransportError, httpx.HTTPStatusError):
                return

    async def _control(
        self, path: str, body: Mapping[str, JsonValue], *, seconds: float | None = None, repeat: bool = True
    ) -> None:
        """A request with the admin key. A reply that says `success: false` is a refusal.

        Args:
            repeat: Whether the call may be made again when no answer comes; a rank joins its group once.
        """
        response = await self._patiently(
            lambda: self._once("POST", path, body, seconds=seconds, admin=True), path, repeat=repeat
        )
        if response.headers.get("content-type", "").startswith("application/json"):
            said = Success.model_validate_json(response.content)
            if not said.success:
                raise ModelUnavailable(f"{self.base_url}{path}: {said.message}")

    async def _once(
        self,
        method: str,
        path: str,
        body: Mapping[str, JsonValue] | None,
        *,
        seconds: float | None = None,
        admin: bool = False,
    ) -> httpx.Response:
        response = await self._http.request(
            method,
            path,
            json=body,
            headers={"Authorization": f"Bearer {self._keys[admin].get_secret_value()}"},
            timeout=self._http.timeout if seconds is None else httpx.Timeout(seconds, connect=10.0),
        )
        return response.raise_for_status()

    async def _patiently(
        self, call: Callable[[], Awaitable[httpx.Response]], path: str, *, repeat: bool = True
    ) -> httpx.Response:
        return await retrying(
            call,
            place=f"{self.base_url}{path}",
            patience_seconds=self._patience_seconds if repeat else 0.0,
            unavailable=ModelUnavailable,
        )
