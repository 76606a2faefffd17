"""The OpenAPI document, made from the route table and the records that travel."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from openmle_gym.configuration import field_docs
from pydantic import AliasChoices, BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema

from sandbox_service import __version__
from sandbox_service.routes.table import Answer, Endpoint
from sandbox_service.routes.wire import Problem

REFUSALS = {
    400: "The request is malformed.",
    401: "No valid key.",
    403: "The key does not allow it.",
    404: "There is no such job, or file.",
    409: "The idempotency key belongs to a job with another payload.",
    413: "The body is too large.",
    416: "The file has no such range.",
    422: "The body is JSON, but not what is asked for.",
    429: "Too many jobs of this key wait. Try again after `Retry-After` seconds.",
    503: "Too many jobs wait, or the job database fails. Try again after `Retry-After` seconds.",
}
RETRY_AFTER = {"description": "Seconds to wait.", "required": True, "schema": {"type": "integer"}}
EVENT = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
    "required": ["id", "event", "data"],
}
"""The schema of one server-sent event."""
Mode = Literal["validation", "serialization"]
References = dict[Any, JsonSchemaValue]
"""Where the schema of a record stands, by record and mode."""


class _Described(GenerateJsonSchema):
    """With the string under each field of a record as the field's description."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        described = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        docs = field_docs(model)
        for name, field in model.model_fields.items():
            alias = field.validation_alias if self.mode == "validation" else field.serialization_alias
            known_as = alias.choices[0] if isinstance(alias, AliasChoices) else alias or name
            if docs.get(name):
                described["properties"][known_as]["description"] = docs[name]
        return described


def openapi_document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The document as JSON-compatible values."""
    endpoints = list(endpoints)
    models = dict.fromkeys(_models(endpoints))
    references, definitions = models_json_schema(
        list(models), ref_template="#/components/schemas/{model}", schema_generator=_Described
    )
    schemas = definitions.get("$defs", {})
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, references)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "OpenMLE sandbox service",
            "version": __version__,
            "description": "Runs untrusted machine-learning programs and grades them on hidden answers.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _models(endpoints: Iterable[Endpoint]) -> Iterator[tuple[type[BaseModel], Mode]]:
    yield Problem, "serialization"
    for endpoint in endpoints:
        if endpoint.body:
            yield endpoint.body, "validation"
        for answer in endpoint.answers.values():
            if answer.body:
                yield answer.body, "serialization"


def _operation(endpoint: Endpoint, references: References) -> dict[str, Any]:
    summary, _, description = (endpoint.handler.__doc__ or "").partition("\n")
    operation: dict[str, Any] = {"operationId": endpoint.handler.__name__, "summary": summary.strip()}
    if description.strip():
        operation["description"] = " ".join(description.split())
    parameters = list(_parameters(endpoint))
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body:
        content = {"application/json": {"schema": references[endpoint.body, "validation"]}}
        operation["requestBody"] = {"required": True, "content": content}
    answers = {str(status): _answer(answer, references) for status, answer in endpoint.answers.items()}
    refusals = {*endpoint.refusals, *((401, 403) if endpoint.needs_key else ()), *((400,) if endpoint.query else ())}
    problem = {"application/json": {"schema": references[Problem, "serialization"]}}
    for status in sorted(refusals):
        answers[str(status)] = {"description": REFUSALS[status], "content": problem}
        if status in (429, 503):
            answers[str(status)]["headers"] = {"Retry-After": RETRY_AFTER}
    operation["responses"] = answers
    # A service without keys asks for none.
    operation["security"] = [{"key": []}, {"bearer": []}, {}] if endpoint.needs_key else [{}]
    return operation


def _answer(answer: Answer, references: References) -> dict[str, Any]:
    content: dict[str, Any] = {
        media_type: {"schema": EVENT if media_type == "text/event-stream" else {"type": "string"}}
        for media_type in answer.media_types
    }
    if answer.body:
        content["application/json"] = {"schema": references[answer.body, "serialization"]}
    return {"description": answer.description} | ({"content": content} if content else {})


def _parameters(endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"\{(\w+)\}", endpoint.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    if endpoint.query:
        schema = endpoint.query.model_json_schema(schema_generator=_Described)
        for name, property_schema in schema["properties"].items():
            yield {
                "name": name,
                "in": "query",
                "required": name in schema.get("required", ()),
                "description": property_schema.get("description", ""),
                "schema": _plain(property_schema, schema.get("$defs", {})),
            }
    for name, description in (endpoint.headers or {}).items():
        yield {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}


def _plain(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """A parameter's schema without what only JSON has: references and null."""
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) == 1:
        return _plain(choices[0], definitions)
    plain = {name: value for name, value in schema.items() if name not in ("title", "description", "default")}
    if "items" in plain:
        plain["items"] = _plain(plain["items"], definitions)
    if schema.get("default") is not None and schema.get("default") != ():
        plain["default"] = schema["default"]
    return plain
