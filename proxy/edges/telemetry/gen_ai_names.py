"""Names of OpenTelemetry's conventions for generative AI, for spans and metrics. Pure, and imports nothing of it.

The conventions: https://github.com/open-telemetry/semantic-conventions-genai (docs/gen-ai).
"""

from policy.endpoints import PROVIDERS
from proxy.dialects import passed_paths
from proxy.dialects.counting import token_count

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    **{path: path.split("/", 2)[2] for path in (*passed_paths.PATHS, token_count.PATH)},
}
"""`gen_ai.operation.name` by path. Where the conventions name none, it is the path without its version."""
PROVIDER_NAMES = {name: provider.trace_name for name, provider in PROVIDERS.items()}
"""`gen_ai.provider.name` by a target's provider."""
