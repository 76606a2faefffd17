"""How requests are read and errors are said: bodies under a cap, parameters by their model, problems as JSON."""

import reprlib
from collections.abc import Mapping
from typing import Any, TypeVar

from openmle_gym.contracts import Contract
from openmle_gym.errors import OpenMLEError, StoreError
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import Request
from starlette.responses import Response

from sandbox_service.auth import AccessDenied
from sandbox_service.records import KeyOverCap, KeyReused, NoSuchResource, QueueFull

RETRY_AFTER_SECONDS = 5
"""What an overloaded service asks for; published clients understand numbers up to 30, and no dates."""

Model = TypeVar("Model", bound=BaseModel)


class Problem(Contract):
    """Why a request was refused."""

    error: str
    """For people; begins with the field where one is at fault."""
    field: str | None = None
    """The field of the body, or the parameter, that is at fault."""


class Refused(OpenMLEError):
    """A request that cannot be served as it is."""

    def __init__(self, status: int, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.field = field


def status_of(error: OpenMLEError) -> int:
    """The HTTP status that says what a request failed on. Overload is 429 or 503, and these are nothing else."""
    match error:
        case Refused() | AccessDenied():
            return error.status
        case KeyReused():
            return 409
        case NoSuchResource():
            return 422
        case KeyOverCap():
            return 429
        case QueueFull() | StoreError():
            return 503
        case _:
            return 500


def problem_of(error: OpenMLEError) -> Problem:
    """What is said of an error."""
    match error:
        case Refused():
            return Problem(error=str(error), field=error.field)
        case KeyReused():
            return Problem(error=str(error), field="idempotency_key")
        case NoSuchResource():
            return Problem(error=str(error), field="resource_type")
        case _:
            return Problem(error=str(error))


def problem_response(status: int, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that says what is wrong; with `Retry-After` where the same request may succeed later."""
    response = Response(problem.model_dump_json(exclude_none=True), status, headers, media_type="application/json")
    if status in (429, 503):
        response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def json_response(model: BaseModel, *, status: int = 200) -> Response:
    """A record as JSON, under the names of the wire protocol."""
    return Response(model.model_dump_json(by_alias=True), status, media_type="application/json")


async def read_body(request: Request, *, most_bytes: int) -> bytes:
    """The body, of which no more is read than is accepted.

    Raises:
        Refused: It is larger; 413.
    """
    announced = request.headers.get("content-length", "0")
    body = bytearray()
    too_large = announced.isdecimal() and int(announced) > most_bytes
    while not too_large:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most_bytes:
                break
        else:
            return bytes(body)
        too_large = True
    raise Refused(413, f"the body is too large; at most {most_bytes} bytes are accepted")


def read_json(body: bytes) -> Any:
    """Raises:
    Refused: The body is not JSON; 400.
    """
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refused(400, f"the body is not JSON: {error}") from None


def read_model(model: type[Model], value: object, *, status: int = 422) -> Model:
    """A record out of JSON, or out of parameters.

    Raises:
        Refused: It does not fit; names the first field at fault, and every fault with the value that was given.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise Refused(status, "; ".join(map(_fault, faults)), field=_field(faults[0]) or None) from None


def read_query(request: Request, model: type[Model]) -> Model:
    """The parameters of a request; those that the model does not know are ignored.

    Raises:
        Refused: One does not fit, or is given twice and is no list; 400.
    """
    given = request.query_params
    values: dict[str, object] = {}
    for name, field in model.model_fields.items():
        texts = given.getlist(name)
        if isinstance(field.default, tuple):
            values[name] = texts
        elif len(texts) > 1:
            raise Refused(400, f"{name}: is given {len(texts)} times", field=name)
        elif texts:
            values[name] = texts[0]
    return read_model(model, values, status=400)


def _field(fault: ErrorDetails) -> str:
    return ".".join(map(str, fault["loc"]))


def _fault(fault: ErrorDetails) -> str:
    field, message = _field(fault), fault["msg"]
    if fault["type"] != "missing":
        message += f", not {reprlib.repr(fault['input'])}"
    return f"{field}: {message}" if field else message
