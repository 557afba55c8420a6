"""The Responses dialect, as the registry knows it."""

from policy.endpoints import RESPONSES
from proxy.dialects.counting.answer_text import responses_texts
from proxy.dialects.middle.dialect import Dialect
from proxy.dialects.responses import passing
from proxy.dialects.responses.answer_reader import read_answer
from proxy.dialects.responses.answer_writer import write_answer
from proxy.dialects.responses.request_reader import read_request
from proxy.dialects.responses.request_writer import write_request
from proxy.dialects.responses.stream_reader import ResponsesStreamReader
from proxy.dialects.responses.stream_writer import ResponsesStreamWriter
from proxy.dialects.responses.unsealing import native_reasoning, without_sealed
from proxy.dialects.usage.meters import ResponsesMeter

DIALECT = Dialect(
    name=RESPONSES,
    path=passing.PATH,
    read_request=read_request,
    write_request=write_request,
    read_answer=read_answer,
    new_stream_reader=ResponsesStreamReader,
    write_answer=write_answer,
    new_stream_writer=ResponsesStreamWriter,
    new_meter=passing.meter,
    request_headers=passing.request_headers,
    new_body_meter=ResponsesMeter,
    stream_reader=passing.stream_reader,
    roles=passing.EVENTS.roles,
    texts=responses_texts,
    without_sealed=without_sealed,
    native_reasoning=native_reasoning,
    holder=passing.EVENTS.holder,
)
