"""Fits a call to what one vendor accepts and others do not demand, where there is one right way; else refuses it.

Pure. What a dialect itself cannot say is its writer's to refuse.
"""

from dataclasses import replace

from policy.endpoints import VENDOR_B
from proxy.dialects.middle.request import OutputFormat, Request, Tool
from proxy.dialects.vendor_rules.schemas import allows_only_required_members, closed_schema

MAX_STOPS = 4
"""The most stop sequences that VENDOR_B takes."""


def fitted(request: Request, provider: str) -> Request:
    """The call as `provider` accepts it. May add to `left_out`. Raises `UntranslatableError`."""
    if provider != VENDOR_B:
        return request
    if len(request.sampling.stop) > MAX_STOPS:
        raise request.refuse("stop", f"the target of this slug takes at most {MAX_STOPS} stop sequences")
    output = request.output_format
    return replace(
        request,
        tools=[_fitted_tool(tool, request.left_out) if tool.strict else tool for tool in request.tools],
        output_format=_fitted_output(output, request) if output is not None and output.strict else output,
    )


def _fitted_tool(tool: Tool, left_out: list[str]) -> Tool:
    """A strict tool. One with optional members is no longer strict: to require them would change what it is given."""
    if tool.schema is None:
        return tool
    closed = closed_schema(tool.schema, tool.field)
    if allows_only_required_members(closed):
        return replace(tool, schema=closed)
    left_out.append(f"{tool.field}.strict")
    return replace(tool, strict=False)


def _fitted_output(output: OutputFormat, request: Request) -> OutputFormat:
    """The same for the schema of an output."""
    field = request.field_of("output_format")
    if output.schema is None:
        return output
    closed = closed_schema(output.schema, field)
    if allows_only_required_members(closed):
        return replace(output, schema=closed)
    request.left_out.append(f"{field} (strict)")
    return replace(output, strict=False)
