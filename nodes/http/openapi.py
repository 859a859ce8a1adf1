"""The OpenAPI document of a table of routes, for /openapi.json."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

MEANINGS = {
    400: "a field of the body or a header is not allowed; the error names it",
    401: "the API key is missing or wrong",
    404: "there is no such path, model or request",
    405: "not with this method",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the body is not application/json",
    429: "too many requests are in hand or wait; see Retry-After",
    499: "the request was cancelled",
    500: "a node failed to compute the answer",
    503: "a part of the path is missing; the error names it",
    504: "the request's time, or a node's budget for it, was over",
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}


def document(table: Sequence[Any]) -> dict[str, Any]:
    """``table``: of ``nodes.http.app.Entry``."""
    bodies: list[Any] = [(e.body, "validation") for e in table if e.body is not None]
    _, schemas = models_json_schema(bodies, ref_template="#/components/schemas/{model}")
    paths: dict[str, Any] = {}
    for e in table:
        path = re.sub(r"{(\w+)(:\w+)?}", r"{\1}", e.path)
        paths.setdefault(path, {})[e.method.lower()] = _operation(e)
    return {
        "openapi": "3.1.0",
        "info": {"title": "zpd", "version": "1", "description": "An OpenAI-compatible server."},
        "paths": paths,
        "components": {
            "schemas": {**schemas.get("$defs", {}), "Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(entry: Any) -> dict[str, Any]:
    error = {"schema": {"$ref": "#/components/schemas/Error"}}
    made: dict[str, Any] = {
        "summary": entry.summary,
        "responses": {"200": {"description": "the answer"}},
    }
    for status in sorted({*entry.statuses, 401, 405}):
        made["responses"][str(status)] = {
            "description": MEANINGS[status],
            "content": {"application/json": {} if entry.path == "/ready" else error},
        }
    if names := re.findall(r"{(\w+)", entry.path):
        made["parameters"] = [
            {"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in names
        ]
    if entry.body is not None:
        ref = {"schema": {"$ref": f"#/components/schemas/{entry.body.__name__}"}}
        made["requestBody"] = {"required": True, "content": {"application/json": ref}}
    return made
