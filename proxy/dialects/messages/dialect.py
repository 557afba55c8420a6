"""The Messages dialect as the translation sees it.

Pure.
"""

from policy.endpoints import MESSAGES
from proxy.dialects.messages.answer_reader import read_answer
from proxy.dialects.messages.answer_writer import write_answer
from proxy.dialects.messages.passing import PATH
from proxy.dialects.messages.request_reader import read_request
from proxy.dialects.messages.request_writer import write_request
from proxy.dialects.messages.stream_reader import MessagesStreamReader
from proxy.dialects.messages.stream_writer import MessagesStreamWriter
from proxy.dialects.middle.dialect import Dialect
from proxy.dialects.usage import MessagesMeter

DIALECT = Dialect(
    name=MESSAGES,
    path=PATH,
    read_request=read_request,
    write_request=write_request,
    read_answer=read_answer,
    new_stream_reader=MessagesStreamReader,
    write_answer=write_answer,
    new_stream_writer=MessagesStreamWriter,
    new_meter=MessagesMeter,
)
