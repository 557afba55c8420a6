"""The Chat Completions dialect, as the registry knows it."""

from proxy.dialects.chat_completions import passing
from proxy.dialects.chat_completions.answer_reader import read_answer
from proxy.dialects.chat_completions.answer_writer import write_answer
from proxy.dialects.chat_completions.reasoning import DIALECT_NAME, native_reasoning, without_sealed
from proxy.dialects.chat_completions.request_reader import read_request
from proxy.dialects.chat_completions.request_writer import write_request
from proxy.dialects.chat_completions.stream_reader import ChatStreamReader
from proxy.dialects.chat_completions.stream_writer import ChatStreamWriter
from proxy.dialects.counting.answer_text import chat_texts
from proxy.dialects.middle.dialect import Dialect
from proxy.dialects.usage.meters import OpenAiMeter

DIALECT = Dialect(
    name=DIALECT_NAME,
    path=passing.CHAT_PATH,
    read_request=read_request,
    write_request=write_request,
    read_answer=read_answer,
    new_stream_reader=ChatStreamReader,
    write_answer=write_answer,
    new_stream_writer=ChatStreamWriter,
    new_meter=OpenAiMeter,
    request_headers=passing.request_headers,
    new_body_meter=OpenAiMeter,
    stream_reader=passing.stream_reader,
    roles=passing.CHUNKS.roles,
    texts=chat_texts,
    without_sealed=without_sealed,
    native_reasoning=native_reasoning,
)
