"""Members of an answer that another dialect has no place for are named to callers."""

from policy.billing import Details
from policy.endpoints import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from tests.upstream.oddities.fidelity import (
    BILLED,
    ITEM,
    SAID,
    SEARCH,
    TRANSLATED,
    chat_whole,
    input_delta,
    message_stream,
    message_whole,
    response_items,
    whole,
)
from tests.upstream.oddities.row import Json, Oddity, Seen, chat_chunk, chat_text, chat_usage, frames, sends

LEFT_OUT = b"x-tollgate-left-out: "
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
SOUND = {"id": "audio_1", "data": "aGk=", "transcript": "hi", "expires_at": 1}
CITED = {"type": "url_citation", "url_citation": {"url": "https://x", "title": "t", "start_index": 0, "end_index": 1}}
CITATION = {"type": "char_location", "cited_text": "x", "document_index": 0, "start_char_index": 0, "end_char_index": 1}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
TEXT_BLOCK = {"type": "text", "text": ""}
HELLO_DELTA = {"type": "text_delta", "text": "Hello"}
CITED_PART = {
    "type": "output_text",
    "text": "Hello",
    "annotations": [{"type": "url_citation", "url": "https://x", "title": "t", "start_index": 0, "end_index": 1}],
}
SPOKEN_PART = {"type": "output_audio", "data": "aGk=", "transcript": "hi"}
DRAWN = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aGk="}
SEARCHED = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}
ITEMS: tuple[tuple[int, Json], ...] = tuple(enumerate((DRAWN, SEARCHED, ITEM | {"content": [SPOKEN_PART, CITED_PART]})))
ITEMS_TOLD = (
    "output.0 (image_generation_call)",
    "output.1 (web_search_call)",
    "output.2.content.0 (output_audio)",
    "output.2.content.1.annotations",
)


def told(*names: str, text: str = "") -> Seen:
    return Seen(text=text, has=(LEFT_OUT, *(name.encode() for name in names)))


ROWS = (
    Oddity(
        name="Chat: a message has pictures, sound and annotations",
        sends=whole(
            chat_whole(
                {"content": "Hello", "images": [PICTURE], "audio": SOUND, "annotations": [CITED]}, citations=["x"]
            )
        ),
        views={
            CHAT_COMPLETIONS: Seen(text="Hello", lacks=(LEFT_OUT,)),
            **{
                caller: told("message.images", "message.audio", "message.annotations", "citations", text="Hello")
                for caller in TRANSLATED
            },
        },
        billed=BILLED,
        stream=False,
    ),
    Oddity(
        name="Chat: a message has a member whose name would end a header field",
        sends=whole(chat_whole({"content": "Hello", "x\r\nset-cookie: a": "b"})),
        views={
            caller: Seen(text="Hello", has=(b"choices.0.message.x__set-cookie__a",), lacks=(b"\nset-cookie",))
            for caller in TRANSLATED
        },
        billed=BILLED,
        stream=False,
    ),
    Oddity(
        name="Chat: a content of parts has a picture",
        sends=whole(chat_whole({"content": [{"type": "text", "text": "Hello"}, PICTURE]})),
        views={caller: told("choices.0.message.content.1 (image_url)", text="Hello") for caller in TRANSLATED},
        billed=BILLED,
        stream=False,
    ),
    Oddity(
        name="Chat: deltas have pictures, sound and annotations",
        sends=sends(
            frames(
                *chat_text("Hello", finish=None),
                chat_chunk({"images": [PICTURE]}),
                chat_chunk({"audio": SOUND}),
                chat_chunk({"content": "", "annotations": [CITED]}),
                chat_chunk(finish="stop"),
                chat_usage(),
                "[DONE]",
            )
        ),
        views={caller: told("delta.images", "delta.audio", "delta.annotations", text="Hello") for caller in TRANSLATED},
        billed=BILLED,
    ),
    Oddity(
        name="Messages: a text has citations",
        sends=whole(message_whole({"type": "text", "text": "Hello", "citations": [CITATION]})),
        spoken=MESSAGES,
        views={
            MESSAGES: Seen(text="Hello", lacks=(LEFT_OUT,)),
            **{caller: told("content.0.citations", text="Hello") for caller in (CHAT_COMPLETIONS, RESPONSES)},
        },
        billed=BILLED,
        stream=False,
    ),
    Oddity(
        name="Messages: the vendor's tool and its result are blocks",
        sends=whole(message_whole(SEARCH, FOUND, {"type": "text", "text": "Hello"})),
        spoken=MESSAGES,
        views={
            caller: told("content.0 (server_tool_use)", "content.1 (web_search_tool_result)", text="Hello")
            for caller in (CHAT_COMPLETIONS, RESPONSES)
        },
        billed=BILLED,
        stream=False,
    ),
    Oddity(
        name="Messages: streamed blocks are the vendor's tool, its result and a cited text",
        sends=message_stream(
            (SEARCH | {"input": {}}, [input_delta('{"query":"x"}')]),
            (FOUND, []),
            (TEXT_BLOCK, [{"type": "citations_delta", "citation": CITATION}, HELLO_DELTA]),
        ),
        spoken=MESSAGES,
        views={
            caller: told("content.0 (server_tool_use)", "(web_search_tool_result)", "content.2.citations", text="Hello")
            for caller in (CHAT_COMPLETIONS, RESPONSES)
        },
        billed=BILLED,
    ),
    Oddity(
        name="Responses: items are a picture, a search, sound and a cited text",
        sends=whole(response_items(DRAWN, SEARCHED, ITEM | {"content": [SPOKEN_PART, CITED_PART]})["response"]),
        spoken=RESPONSES,
        views={
            RESPONSES: Seen(text="Hello", lacks=(LEFT_OUT,)),
            **{caller: told(*ITEMS_TOLD, text="Hello") for caller in (CHAT_COMPLETIONS, MESSAGES)},
        },
        billed=BILLED,
        details=Details(server_tool_calls=2),
        stream=False,
    ),
    Oddity(
        name="Responses: streamed items are a picture, a search, sound and a cited text",
        sends=sends(
            frames(
                SAID[0],
                *({"type": "response.output_item.done", "output_index": place, "item": item} for place, item in ITEMS),
                response_items(*(item for _, item in ITEMS)),
            )
        ),
        spoken=RESPONSES,
        views={caller: told(*ITEMS_TOLD, text="Hello") for caller in (CHAT_COMPLETIONS, MESSAGES)},
        billed=BILLED,
        details=Details(server_tool_calls=2),
    ),
)
