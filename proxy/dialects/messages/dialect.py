"""The Messages dialect, as the registry knows it."""

from functools import partial

from policy.endpoints import MESSAGES
from proxy.dialects.counting.answer_text import messages_texts
from proxy.dialects.messages import passing
from proxy.dialects.messages.answer_reader import read_answer
from proxy.dialects.messages.answer_writer import write_answer
from proxy.dialects.messages.request_reader import read_request
from proxy.dialects.messages.request_writer import write_request
from proxy.dialects.messages.stream_reader import MessagesStreamReader
from proxy.dialects.messages.stream_writer import MessagesStreamWriter
from proxy.dialects.messages.unsealing import native_reasoning, without_sealed
from proxy.dialects.middle.dialect import Dialect
from proxy.dialects.usage.meters import MessagesMeter

DIALECT = Dialect(
    name=MESSAGES,
    path=passing.PATH,
    read_request=read_request,
    write_request=write_request,
    read_answer=read_answer,
    new_stream_reader=MessagesStreamReader,
    write_answer=write_answer,
    new_stream_writer=MessagesStreamWriter,
    new_meter=MessagesMeter,
    request_headers=passing.request_headers,
    new_body_meter=partial(MessagesMeter, is_whole=True),
    stream_reader=passing.stream_reader,
    roles=passing.EVENTS.roles,
    holder=passing.EVENTS.holder,
    texts=messages_texts,
    without_sealed=without_sealed,
    native_reasoning=native_reasoning,
)
