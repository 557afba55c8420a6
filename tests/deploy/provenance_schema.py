"""JSON Schema of an in-toto Statement v1 with SLSA's provenance v1, written from their published field descriptions.

https://github.com/in-toto/attestation/tree/main/spec/v1 and https://slsa.dev/spec/v1.1/provenance. Extension fields are
allowed there; we write none, so that a misspelt member fails.
"""

from typing import Any

URI = {"type": "string", "pattern": r"^[a-z][a-z0-9+.-]*:\S+$"}
DIGESTS = {
    "type": "object",
    "minProperties": 1,
    "properties": {
        "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "gitCommit": {"type": "string", "pattern": "^([0-9a-f]{40}|[0-9a-f]{64})$"},
    },
    "additionalProperties": False,
}
RESOURCE: dict[str, Any] = {
    "type": "object",
    "anyOf": [{"required": ["uri"]}, {"required": ["digest"]}, {"required": ["content"]}],
    "properties": {
        "name": {"type": "string"},
        "uri": URI,
        "digest": DIGESTS,
        "content": {"type": "string"},
        "downloadLocation": URI,
        "mediaType": {"type": "string"},
        "annotations": {"type": "object"},
    },
    "additionalProperties": False,
}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
TIME = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$"}
BUILD_DEFINITION = {
    "type": "object",
    "required": ["buildType", "externalParameters"],
    "properties": {
        "buildType": URI,
        "externalParameters": TEXTS,
        "internalParameters": TEXTS,
        "resolvedDependencies": {"type": "array", "items": RESOURCE},
    },
    "additionalProperties": False,
}
RUN_DETAILS = {
    "type": "object",
    "required": ["builder"],
    "properties": {
        "builder": {
            "type": "object",
            "required": ["id"],
            "properties": {
                "id": URI,
                "builderDependencies": {"type": "array", "items": RESOURCE},
                "version": TEXTS,
            },
            "additionalProperties": False,
        },
        "metadata": {
            "type": "object",
            "properties": {"invocationId": {"type": "string"}, "startedOn": TIME, "finishedOn": TIME},
            "additionalProperties": False,
        },
        "byproducts": {"type": "array", "items": RESOURCE},
    },
    "additionalProperties": False,
}
STATEMENT_WITH_PROVENANCE = {
    "type": "object",
    "required": ["_type", "subject", "predicateType", "predicate"],
    "properties": {
        "_type": {"const": "https://in-toto.io/Statement/v1"},
        "subject": {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": RESOURCE | {"required": ["name", "digest"]},
        },
        "predicateType": {"const": "https://slsa.dev/provenance/v1"},
        "predicate": {
            "type": "object",
            "required": ["buildDefinition", "runDetails"],
            "properties": {"buildDefinition": BUILD_DEFINITION, "runDetails": RUN_DETAILS},
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
