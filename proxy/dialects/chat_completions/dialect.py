"""What Chat Completions brings to the translation.

Pure.
"""

from proxy.dialects.chat_completions.answer_reader import read_answer
from proxy.dialects.chat_completions.answer_writer import write_answer
from proxy.dialects.chat_completions.passing import CHAT_PATH
from proxy.dialects.chat_completions.reasoning import DIALECT_NAME
from proxy.dialects.chat_completions.request_reader import read_request
from proxy.dialects.chat_completions.request_writer import write_request
from proxy.dialects.chat_completions.stream_reader import ChatStreamReader
from proxy.dialects.chat_completions.stream_writer import ChatStreamWriter
from proxy.dialects.middle.dialect import Dialect
from proxy.dialects.usage import OpenAiMeter

DIALECT = Dialect(
    name=DIALECT_NAME,
    path=CHAT_PATH,
    read_request=read_request,
    write_request=write_request,
    read_answer=read_answer,
    new_stream_reader=ChatStreamReader,
    write_answer=write_answer,
    new_stream_writer=ChatStreamWriter,
    new_meter=lambda most: OpenAiMeter(most=most),
)
