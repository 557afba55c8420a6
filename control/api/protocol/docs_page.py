"""`/docs`: the OpenAPI document as one HTML page, without scripts or resources from other hosts."""

import json
from html import escape
from typing import Any

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
code,pre{font:13px/1.4 ui-monospace,monospace}pre{background:#f3f4f6;padding:.6rem;overflow:auto}
details{border:1px solid #d8dce0;border-radius:6px;margin:.5rem 0;padding:.4rem .8rem}
summary{cursor:pointer}.m{display:inline-block;min-width:4.2rem;font-weight:600}
table{border-collapse:collapse}td,th{border:1px solid #d8dce0;padding:.2rem .5rem;text-align:left;vertical-align:top}
@media(prefers-color-scheme:dark){body{color:#e6e8ea;background:#15181b}pre{background:#22262a}}
"""
Json = dict[str, Any]


def docs_page(document: Json) -> str:
    """The complete HTML page for an OpenAPI document."""
    info = document["info"]
    tags = dict.fromkeys(
        operation["tags"][0] for methods in document["paths"].values() for operation in methods.values()
    )
    sections = "".join(_section(document, tag) for tag in tags)
    messages = "".join(_operation(name, "post", one["post"]) for name, one in document.get("webhooks", {}).items())
    schemas = "".join(_schema(name, schema) for name, schema in document["components"]["schemas"].items())
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])}</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info['description'])} "
        "Send <code>Authorization: Bearer &lt;API_KEY&gt;</code>. "
        "OpenAPI document: <a href=/v1/openapi.json>/v1/openapi.json</a>; "
        "of the calls to models: <a href=/v1/openapi-inference.json>/v1/openapi-inference.json</a>.</p>"
        f"{sections}<h2>Messages that Tollgate sends</h2>{messages}<h2>Schemas</h2>{schemas}</html>"
    )


def _section(document: Json, tag: str) -> str:
    parts = [
        _operation(path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if operation["tags"][0] == tag
    ]
    texts = {one["name"]: one["description"] for one in document.get("tags", [])}
    return f"<h2>{escape(tag)}</h2><p>{escape(texts.get(tag, ''))}</p>{''.join(parts)}"


def _operation(path: str, method: str, operation: Json) -> str:
    body = operation.get("requestBody")
    request_body = f"<p>Body: {_body(body)}</p>" if body else ""
    parameters = "".join(
        f"<tr><td><code>{escape(p['name'])}</code><td>{escape(p['in'])}<td>{escape(p.get('description', ''))}"
        for p in operation["parameters"]
    )
    table = f"<table><tr><th>parameter<th>in<th>{parameters}</table>" if parameters else ""
    answers = "".join(
        f"<tr><td>{status}<td>{escape(answer['description'])}<td>{_body(answer)}"
        for status, answer in operation["responses"].items()
    )
    return (
        f"<details><summary><span class=m>{method.upper()}</span><code>{escape(path)}</code> "
        f"{escape(operation['summary'])}</summary>"
        f"<p>{escape(operation.get('description', ''))}</p>{table}{request_body}"
        f"<table><tr><th>status<th>when<th>body{answers}</table></details>"
    )


def _body(message: Json) -> str:
    """The model of a body, and its example."""
    content = message.get("content", {}).get("application/json")
    if content is None:
        return ""
    example = content.get("example")
    text = "" if example is None else f"<pre>{escape(json.dumps(example, indent=1, ensure_ascii=False))}</pre>"
    return _link(content["schema"]) + text


def _schema(name: str, schema: Json) -> str:
    fields = schema.get("properties", {})
    required = schema.get("required", [])
    rows = "".join(_field(field, rule, required) for field, rule in fields.items())
    head = f"<details id={escape(name)}><summary><code>{escape(name)}</code></summary>"
    return f"{head}<p>{escape(schema.get('description', ''))}</p><table>{rows}</table></details>"


def _field(name: str, rule: Json, required: list[str]) -> str:
    note = "required" if name in required else ""
    return f"<tr><td><code>{escape(name)}</code><td>{_type(rule)}<td>{note}<td>{escape(rule.get('description', ''))}"


def _type(rule: Json) -> str:
    if "$ref" in rule:
        return _link(rule)
    choices = rule.get("anyOf") or rule.get("oneOf")
    if choices:
        return " or ".join(map(_type, choices))
    if rule.get("type") == "array":
        return f"list of {_type(rule.get('items', {}))}"
    values = rule.get("enum") or ([rule["const"]] if "const" in rule else [])
    return escape(", ".join(map(str, values)) or str(rule.get("type", "any")))


def _link(schema: Json) -> str:
    name = schema.get("$ref", "").rpartition("/")[2]
    return f"<a href='#{escape(name)}'><code>{escape(name)}</code></a>"
