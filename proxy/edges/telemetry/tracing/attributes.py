"""Names and attributes of a call's spans, by OpenTelemetry's semantic conventions for HTTP and generative AI.

Pure. The conventions: https://github.com/open-telemetry/semantic-conventions-genai (docs/gen-ai), v1.44 for HTTP.

See docs/reference/traces.md#spans.
"""

from urllib.parse import urlsplit

from opentelemetry.util.types import AttributeValue

from policy.endpoints import Target
from proxy.accounting.request_report import RequestReport
from proxy.edges.telemetry.gen_ai_names import OPERATIONS, PROVIDER_NAMES
from proxy.records.messages import MODELS_PATH, UpstreamCall

Attributes = dict[str, AttributeValue]

ROUTES = frozenset((*OPERATIONS, MODELS_PATH))
"""Paths that are the same for all callers, so that they may be part of a span's name."""
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_PORTS = {"http": 80, "https": 443}
MAX_PATH_CHARS = 256
SERVER_ERROR = 500


def method_of(method: str) -> str:
    """The method, or `_OTHER` if the conventions do not know it."""
    return method if method in _METHODS else "_OTHER"


def server_span_name(method: str, path: str) -> str:
    """The name of a server span. `path`: without the query."""
    name = method if method in _METHODS else "HTTP"
    return f"{name} {path}" if path in ROUTES else name


def client_span_name(call: UpstreamCall, target: Attributes) -> str:
    """The name of a client span. `target`: from `of_target`; empty for a direct call."""
    if not target:
        return method_of(call.method)
    return f"{target['gen_ai.operation.name']!s} {target['gen_ai.request.model']!s}"


def of_request(method: str, path: str) -> Attributes:
    """The attributes of a server span at its start. A sampler sees these."""
    attributes: Attributes = {
        "http.request.method": method_of(method),
        "url.scheme": "http",
        "url.path": path[:MAX_PATH_CHARS],
    }
    if path in ROUTES:
        attributes["http.route"] = path
    return attributes


def of_report(report: RequestReport) -> Attributes:
    """The attributes of a server span that describe the whole call."""
    attributes: Attributes = {
        "http.request.body.size": report.request_bytes,
        "http.response.body.size": report.response_bytes,
        "tollgate.request_id": report.request_id,
        "tollgate.ours_ms": round(report.ours_s * 1e6) / 1000,
    }
    if report.status:
        attributes["http.response.status_code"] = report.status
    if report.status >= SERVER_ERROR:
        attributes["error.type"] = report.cause or str(report.status)
    labels = report.labels
    members = {
        "tollgate.cause": report.cause,
        "tollgate.workspace": labels.workspace_id,
        "tollgate.group": labels.group_id,
        "tollgate.external_entity_id": labels.external_entity_id,
        "tollgate.key_prefix": labels.key_prefix,
        "tollgate.slug": labels.slug,
        "tollgate.model_id": labels.model_id,
    }
    attributes.update({name: value for name, value in members.items() if value})
    if report.first_byte_s is not None:
        attributes["tollgate.first_byte_ms"] = round(report.first_byte_s * 1e6) / 1000
    return attributes


def of_target(target: Target, path: str, slug: str, streaming: bool) -> Attributes:
    """The attributes of a client span of a call to a slug. `path`: the caller's."""
    return {
        "gen_ai.operation.name": OPERATIONS[path],
        "gen_ai.provider.name": PROVIDER_NAMES.get(target.provider, target.provider.lower()),
        "gen_ai.request.model": target.target_model or slug,
        "gen_ai.request.stream": streaming,
    }


def of_usage(report: RequestReport) -> Attributes:
    """The tokens as they are billed. The input includes cached tokens, as the conventions require."""
    if report.tokens is None:
        return {}
    return {
        "gen_ai.usage.input_tokens": report.tokens.input,
        "gen_ai.usage.output_tokens": report.tokens.output,
        "gen_ai.usage.cache_read.input_tokens": report.tokens.cached_input,
    }


def of_upstream(call: UpstreamCall) -> Attributes:
    """The upstream's host and port, but not the URL: its path may be a secret of its owner's."""
    parts = urlsplit(call.url)
    return {
        "http.request.method": method_of(call.method),
        "server.address": parts.hostname or "",
        "server.port": parts.port or _PORTS.get(parts.scheme, 0),
    }
