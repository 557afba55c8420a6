"""A call of the data plane, as the document has it, and its rendering as an operation."""

from dataclasses import dataclass, field

from control.api.inference_document.fields import header_references
from control.api.inference_document.json_schema import Json, reference
from control.api.inference_document.refusals import CallKind, error_references


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A method on a path. `content`: the media types of a success, empty if it has no body of its own."""

    method: str
    path: str
    id: str
    tag: str
    kind: CallKind
    summary: str
    description: str
    content: Json
    status: int = 200
    success: str = "Success."
    parameters: tuple[Json, ...] = ()
    body: Json = field(default_factory=dict)
    """The media types of the request."""
    passes_any_success: bool = False
    """True if every 2xx of a replica passes, and 304."""
    vendor: str = ""
    """The vendor's own description of the call."""

    def operation(self) -> Json:
        operation: Json = {
            "operationId": self.id,
            "tags": [self.tag],
            "summary": self.summary,
            "description": self.description,
            "parameters": list(self.parameters),
            "responses": {**self._successes(), **error_references(self.kind)},
        }
        if self.body:
            operation["requestBody"] = {"required": True, "content": self.body}
        if self.vendor:
            operation["externalDocs"] = {"description": "The vendor's own description", "url": self.vendor}
        return operation

    def _successes(self) -> Json:
        """The success; where a replica's own answer passes, every other one of it, too."""
        headers = header_references(self.kind.answer_fields)
        success = {"description": self.success, "headers": headers, "content": self.content}
        if not self.passes_any_success:
            return {str(self.status): success}
        unchanged = {"description": "What the caller has is the present version.", "headers": headers}
        return {"200": success, "2XX": success, "304": unchanged}


def json_of(name: str, **more: object) -> Json:
    """The media type JSON, of the schema `name`."""
    return {"application/json": {"schema": reference(name), **more}}
