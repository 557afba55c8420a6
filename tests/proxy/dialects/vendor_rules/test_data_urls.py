"""Pictures and files reach each target under the registered name of their type, however a caller spells it."""

from typing import Any

import orjson
import pytest

from tests.proxy.dialects.samples import CHAT, MESSAGES, SLUG, VENDOR_A, VENDOR_C, build_request, received

Json = dict[str, Any]
JPEG = [
    "data:image/jpg;base64,",
    "data:image/JPEG;base64,",
    "data:image/jpeg;charset=utf-8;base64,",
    'data:image/jpeg;name="a b.jpg";base64,',
    "data:image/pjpeg;name=a%20b.jpg;charset=x;base64,",
    "DATA:Image/Jpg;BASE64,",
]


def asked(path: str, content: list[Json]) -> Json:
    """The user's message that a target of another dialect gets."""
    turn = {"role": "user", "content": content}
    member = {"input": [turn]} if path == "/v1/responses" else {"messages": [turn], "max_tokens": 9}
    target = VENDOR_C if path == MESSAGES else VENDOR_A
    body = orjson.loads(bytes(build_request(received({"model": SLUG} | member, path), target, "k").body))
    message: Json = body["messages"][0]
    return message


@pytest.mark.parametrize("head", JPEG)
def test_a_picture_has_the_registered_name_of_its_type(head: str) -> None:
    source = {"type": "base64", "media_type": "image/jpeg", "data": "/9j/"}
    of_chat = {"type": "image_url", "image_url": {"url": f"{head}/9j/"}}
    of_responses = {"type": "input_image", "image_url": f"{head}/9j/"}
    assert asked(CHAT, [of_chat])["content"] == [{"type": "image", "source": source}]
    assert asked("/v1/responses", [of_responses])["content"] == [{"type": "image", "source": source}]


@pytest.mark.parametrize("media", ["image/jpg", "IMAGE/JPEG", "image/pjpeg"])
def test_a_picture_of_messages_has_it_too(media: str) -> None:
    block = {"type": "image", "source": {"type": "base64", "media_type": media, "data": "/9j/"}}
    url = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9j/"}}
    assert asked(MESSAGES, [block])["content"] == [url]


def test_a_file_with_parameters_is_read() -> None:
    file = {"type": "input_file", "file_data": "data:application/x-pdf;name=a.pdf;base64,JVBE", "filename": "a.pdf"}
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}
    assert asked("/v1/responses", [file])["content"] == [{"type": "document", "source": source, "title": "a.pdf"}]
