"""The OpenAPI 3.1.0 document of the inference surface, which the proxy serves and control describes.

It says what the gateway guarantees; the vendors describe the rest, which passes. Tests hold it against real answers.

See docs/reference/inference.md#description and decision 0093.
"""

import orjson
from aiohttp import web

from control.api.inference_document import (
    chat_schemas,
    error_schemas,
    media_schemas,
    messages_schemas,
    platform_calls,
    platform_schemas,
    responses_schemas,
    slug_calls,
)
from control.api.inference_document.fields import header_components, parameter_components
from control.api.inference_document.json_schema import Json
from control.api.inference_document.refusals import LOGGED_ONLY, error_components

PATH = "/v1/openapi-inference.json"
CALLS = (*slug_calls.CALLS, *platform_calls.CALLS)
SCHEMAS: Json = {
    **error_schemas.SCHEMAS,
    **chat_schemas.SCHEMAS,
    **messages_schemas.SCHEMAS,
    **responses_schemas.SCHEMAS,
    **media_schemas.SCHEMAS,
    **platform_schemas.SCHEMAS,
}
_LOCAL = "http://127.0.0.1:8080"
_DESCRIPTION = (
    "What callers reach on the proxy. `model` is a slug, in requests and in answers. A group's key, or a token of the"
    " workspace's identity provider, calls slugs; a workspace key makes direct calls to platform models and queues"
    " asynchronous requests.\n\n"
    "The schemas state what the gateway reads and guarantees, and let everything else through; `externalDocs` lead to"
    " the vendors' own descriptions. A translated answer keeps to its schema. One that passes unchanged does so as far"
    " as its target keeps to its vendor's description: the gateway does not mend it, and passes its label, too.\n\n"
    "Every error is JSON with `error`; the gateway's own have `error_code`, too, except 401 and 403. After the head of"
    f" a stream, an error ends it early. A caller that leaves is 499 `{LOGGED_ONLY}`, in metrics and log alone.\n\n"
    "`HEAD` is answered where `GET` is. `accept` and `user-agent` go upstream as well. Preflight requests of browsers"
    " are answered where the operator allows origins. Health and metrics are on another port, for operators."
)
_TAGS = {
    slug_calls.CHAT: ("The Chat Completions family.", "https://platform.openai.com/docs/api-reference/chat"),
    slug_calls.MESSAGES: ("The Messages dialect.", "https://docs.anthropic.com/en/api/messages"),
    slug_calls.RESPONSES: ("The Responses dialect.", "https://platform.openai.com/docs/api-reference/responses"),
    slug_calls.PASSED: ("Moderation, ranking, pictures and sound: passed on unchanged but for `model`.", ""),
    slug_calls.LISTS: ("The slugs that a key may call.", ""),
    platform_calls.DIRECT: ("Calls of a workspace to its platform models, without a slug and without limits.", ""),
    platform_calls.ASYNC: ("Predictions that are queued; their results go to webhooks.", ""),
}


def describe_inference(inference_url: str | None) -> Json:
    """The complete document. `inference_url`: where callers reach the proxy, if the operator has said it."""
    paths: Json = {}
    for call in CALLS:
        paths.setdefault(call.path, {})[call.method.lower()] = call.operation()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tollgate inference API",
            "version": "1.0.0",
            "description": _DESCRIPTION,
            "contact": {"name": "The operator of this installation"},
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [_server(inference_url)],
        "tags": [_tag(name, *about) for name, about in _TAGS.items()],
        "security": [{"bearer": []}, {"apiKey": []}, {"xApiKey": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "parameters": parameter_components(),
            "headers": header_components(),
            "responses": error_components(),
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }


_SECURITY_SCHEMES: Json = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A key, or a token (JWT) of the workspace's identity provider.",
    },
    "apiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "Authorization",
        "description": "The legacy form: `Api-Key <API_KEY>`.",
    },
    "xApiKey": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "A key, or a token."},
}


def _server(inference_url: str | None) -> Json:
    if inference_url is not None:
        return {"url": inference_url, "description": "The proxy."}
    variable = {"default": _LOCAL, "description": "Where callers reach the proxy."}
    return {"url": "{inference_url}", "description": "The proxy.", "variables": {"inference_url": variable}}


def _tag(name: str, description: str, url: str) -> Json:
    vendor = {"externalDocs": {"description": "The vendor's own description", "url": url}} if url else {}
    return {"name": name, "description": description} | vendor


def inference_routes(inference_url: str | None) -> list[web.RouteDef]:
    """The route of the document, which needs no credentials. It is written at the first request."""
    texts: list[bytes] = []

    async def answer(_request: web.Request) -> web.Response:
        if not texts:
            texts.append(orjson.dumps(describe_inference(inference_url)))
        return web.Response(body=texts[0], content_type="application/json")

    return [web.get(PATH, answer)]
