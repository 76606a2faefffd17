"""A local server in this process, and clients of it without sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from openmle_erl.engines.local_server import LocalServer
from openmle_erl.engines.sglang import SGLangEngine
from openmle_erl.sft.tokens import load_tokenizer
from pydantic import SecretStr

API_KEY, ADMIN_KEY = SecretStr("asks"), SecretStr("steers")


@asynccontextmanager
async def running_server(
    folder: Path,
    *,
    api_key: SecretStr | None = API_KEY,
    admin_key: SecretStr | None = ADMIN_KEY,
    max_running: int = 64,
) -> AsyncIterator[LocalServer]:
    """A server whose generator runs."""
    local = LocalServer(
        folder,
        tokenizer=load_tokenizer(folder),
        api_key=api_key,
        admin_key=admin_key,
        name="tiny",
        max_running=max_running,
    )
    async with local.app.router.lifespan_context(local.app):
        yield local


def client_of(local: LocalServer, *, api_key: SecretStr = API_KEY, admin_key: SecretStr = ADMIN_KEY) -> SGLangEngine:
    """A client that gives up at once."""
    transport = httpx.ASGITransport(local.app)
    return SGLangEngine("http://local", api_key=api_key, admin_key=admin_key, patience_seconds=0.0, transport=transport)
