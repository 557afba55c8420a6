"""Forms are passed byte for byte but for their model, and refused where two parsers could see different parts."""

import asyncio
import random
import re
from collections.abc import Iterator

import aiohttp
import httpx
import pytest
from aiohttp import MultipartReader
from aiohttp.base_protocol import BaseProtocol

from proxy.forms.boundary import boundary_of, content_type_of
from proxy.forms.form_reader import MAX_PARTS, FormReader
from proxy.refusals import MalformedRequestError

SLUG = "acme/scribe"
MODEL = "their-model"
AUDIO = random.Random(1).randbytes(3000) + b'\r\n--\r\n--x\r\n\r\nname="model"\n'
MODEL_PART = b'Content-Disposition: form-data; name="model"\r\n\r\n' + MODEL.encode()
STREAM = b'Content-Disposition: form-data; name="stream"\r\n\r\ntrue'
FILE = b'Content-Disposition: form-data; name="file"; filename="a.mp3"\r\nContent-Type: audio/mpeg\r\n\r\n' + AUDIO


def text(name: str, value: str = SLUG, more: str = "") -> bytes:
    return f'Content-Disposition: form-data; name="{name}"\r\n{more}\r\n{value}'.encode()


def form(*parts: bytes, end: bytes = b"--b--\r\n") -> bytes:
    return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + end


def read(body: bytes, boundary: bytes = b"b", cut: int | None = None) -> tuple[FormReader, bytes]:
    """Read a form, in one piece or in pieces of `cut` bytes; returns what goes upstream."""
    reader = FormReader(boundary)
    for start in range(0, len(body), cut or len(body) or 1):
        reader.feed(body[start : start + (cut or len(body))])
    reader.end()
    if reader.model is None:
        raise MalformedRequestError("no model")
    reader.rename(MODEL)
    return reader, b"".join(reader.drain())


@pytest.mark.parametrize("cut", [None, 1, 2, 3, 7, 64, 1000])
def test_only_the_model_changes_however_the_bytes_are_cut(cut: int | None) -> None:
    before = [FILE, text("language", "en")]
    after = [STREAM, text("include[]", "logprobs")]
    reader, output = read(form(*before, text("model"), *after), cut=cut)
    assert (reader.model, reader.streaming) == (SLUG, True)
    assert output == form(*before, MODEL_PART, *after)


def test_rename_tells_the_growth() -> None:
    reader = FormReader(b"b")
    body = form(text("model", more="Content-Type: text/plain; charset=utf-8\r\n"), FILE)
    reader.feed(body)
    reader.end()
    grown = reader.rename(MODEL)
    assert len(b"".join(reader.drain())) == len(body) + grown


def test_bytes_pass_while_a_part_arrives() -> None:
    reader = FormReader(b"b")
    reader.feed(form(text("model"), end=b"") + b"--b\r\n" + FILE)
    reader.rename(MODEL)
    passed = len(b"".join(reader.drain()))
    for _ in range(100):
        reader.feed(AUDIO)
        passed += len(b"".join(reader.drain()))
    assert passed >= 100 * len(AUDIO), "nothing but a possible delimiter is held"


def encoded_by_clients() -> Iterator[tuple[str, str, bytes]]:
    """(client, content-type, body) as stock clients encode a transcription."""
    fields = {"model": SLUG, "language": "en", "stream": "true"}
    request = httpx.Request("POST", "http://x", data=fields, files={"file": ("ä b.mp3", AUDIO, "audio/mpeg")})
    yield "httpx", request.headers["content-type"], request.read()
    dashes = "-" * 24 + "d74496d66958873e"
    curl = b"".join(
        f'--{dashes}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"
        for name, more, value in (
            ("file", '; filename="a.mp3"\r\nContent-Type: application/octet-stream', AUDIO),
            ("model", "", SLUG.encode()),
        )
    )
    yield "curl", f"multipart/form-data; boundary={dashes}", curl + f"--{dashes}--\r\n".encode()
    dotnet = form(
        b"Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=model\r\n\r\n"
        + SLUG.encode(),
        b"Content-Disposition: form-data; name=file; filename=a.mp3; filename*=utf-8''a.mp3\r\n\r\n" + AUDIO,
    )
    yield ".NET", 'multipart/form-data; boundary="b"', dotnet
    okhttp = form(
        text("model", more=f"Content-Length: {len(SLUG)}\r\n"),
        FILE.replace(b"audio/mpeg\r\n", b"audio/mpeg\r\nContent-Length: %d\r\n" % len(AUDIO)),
    )
    yield "OkHttp", "multipart/form-data; boundary=b", okhttp


@pytest.mark.parametrize("client", ["httpx", "curl", ".NET", "OkHttp"])
def test_forms_of_stock_clients_are_read(client: str) -> None:
    [(content_type, body)] = [(kind, body) for name, kind, body in encoded_by_clients() if name == client]
    boundary = boundary_of([content_type])
    reader, output = read(body, boundary, cut=100)
    assert reader.model == SLUG
    assert AUDIO in output
    assert SLUG.encode() not in output
    assert output.count(MODEL_PART) == 1


async def test_form_of_aiohttp_is_read() -> None:
    data = aiohttp.FormData({"model": SLUG})
    data.add_field("file", AUDIO, filename="ä.mp3", content_type="audio/mpeg")
    payload = data()
    body = await payload.as_bytes()
    boundary = boundary_of([payload.headers["content-type"]])
    assert read(body, boundary)[0].model == SLUG


HOSTILE = {
    "model occurs more than once": form(text("model"), FILE, text("model", "other")),
    "stream occurs more than once": form(text("model"), STREAM, STREAM),
    "'model' that is text": form(FILE),
    "Model must be spelled model": form(text("model"), text("Model", "other")),
    "model[] must be spelled model": form(text("model"), text("model[]", "other")),
    "[model] must be spelled model": form(text("model"), text("[model]", "other")),
    "model.x must be spelled model": form(text("model"), text("model.x", "other")),
    "STREAM must be spelled stream": form(text("model"), text("STREAM", "true")),
    "model must be a text field of the form, not a file": form(FILE.replace(b'"file"', b'"model"')),
    "model must be a text of one line": form(text("model", "a\r\nb")),
    "send the header x-request-metadata": form(text("model"), text("metadata", "{}")),
    "_charset_ is not accepted": form(text("model"), text("_charset_", "utf-7")),
    "model is longer than 1024 bytes": form(text("model", "m" * 1025)),
    "note must not be a multipart message": form(text("model"), text("note", "x", "Content-Type: multipart/mixed\r\n")),
    "note must not be encoded (content-transfer-encoding)": form(
        text("model"), text("note", "eA==", "Content-Transfer-Encoding: base64\r\n")
    ),
    "note must not be encoded (content-encoding)": form(text("model"), text("note", "x", "Content-Encoding: gzip\r\n")),
    "note: its content-length is not its size": form(text("model"), text("note", "abc", "Content-Length: 2\r\n")),
    "note: its content-length is not its size ": form(text("model"), text("note", "abc", "Content-Length: 4\r\n")),
    "note: its content-length is not a number": form(text("model"), text("note", "abc", "Content-Length: +3\r\n")),
    "the form must begin with its boundary": b"preamble\r\n" + form(text("model")),
    "the form has bytes after its last delimiter": form(text("model"), end=b"--b--\r\nmore"),
    "the form ends before its last delimiter": form(text("model"), end=b""),
    "the form ends before its last delimiter ": form(text("model"), end=b"--b--\r"),
    "the form has more than 1000 parts": form(text("model"), *[text("x")] * MAX_PARTS),
}


@pytest.mark.parametrize("value", ["1", "True", "TRUE", "False", "tRUE", " true", "true "])
def test_stream_is_true_or_false_in_lower_case_alone(value: str) -> None:
    with pytest.raises(MalformedRequestError, match="stream must be true or false, in lower case"):
        read(form(text("stream", value), text("model")), b"b")
    for accepted in ("true", "false"):
        reader, _ = read(form(text("stream", accepted), text("model")), b"b")
        assert reader.streaming is (accepted == "true")


@pytest.mark.parametrize(("fault", "body"), HOSTILE.items())
@pytest.mark.parametrize("cut", [None, 1, 50])
def test_hostile_form_is_refused_and_its_fault_named(fault: str, body: bytes, cut: int | None) -> None:
    def feed() -> str:
        reader = FormReader(b"b")
        for start in range(0, len(body), cut or len(body)):
            reader.feed(body[start : start + (cut or len(body))])
        reader.end()
        return reader.model or "the form must have a part 'model' that is text"

    try:
        answered = feed()
    except MalformedRequestError as error:
        answered = str(error)
    assert fault.strip() in answered


def test_part_longer_than_it_declares_is_refused_before_it_ends() -> None:
    reader = FormReader(b"b")
    with pytest.raises(MalformedRequestError, match="note: its content-length is not its size"):
        reader.feed(form(text("model"), text("note", "abcdefghij", "Content-Length: 3\r\n"), end=b""))


AMBIGUOUS = {
    "an LF alone before it": form(text("model"), text("note", "x\n--b\r\nmore")),
    "nothing before it": form(text("model"), text("note", "x--b")),
    "a longer boundary": form(text("model"), text("note", "x\r\n--bb")),
    "padding after it": form(text("model"), end=b"--b \r\n" + text("model") + b"\r\n--b--\r\n"),
    "an LF alone after it": form(text("model"), end=b"--b\n" + text("model") + b"\r\n--b--\r\n"),
    "right after a head": form(text("model"), text("note", "")[:-2] + b"--b"),
    "other bytes after it, at the end": form(text("model"), end=b"--bxx\r\n"),
    "one dash after it": form(text("model"), end=b"--b-\r\n"),
}


@pytest.mark.parametrize("body", AMBIGUOUS.values(), ids=AMBIGUOUS)
@pytest.mark.parametrize("cut", [None, 1])
def test_boundary_that_some_parsers_take_for_a_delimiter_is_refused(body: bytes, cut: int | None) -> None:
    with pytest.raises(MalformedRequestError):
        read(body, cut=cut)


HEADS = [
    "name*=utf-8''model",
    'name="mod%65l"',
    'name="model "',
    'name="mo\\del"',
    "name='model'",
    'name="=?utf-8?b?bW9kZWw=?="',
    'name="ｍodel"',
    'name="note"; name="model"',
    'filename="x"; name="model"',
    'name="note"; filename="a\\"; name=\\"model"',
    'name="note"; filename="a; name=model"',
    'name=note; filename="model"',
    'name="note"; filename="--b"',
    'name="note"\r\nX: --b',
    'name="note"; x="y"',
    'name="note"\r\nContent-Disposition: form-data; name="model"',
    'name="note"\r\nContent-Disposition: form-data; name="other"',
    'name="note";\r\n name="model"',
    'name="note"\nX: y',
    'name="note"\r\nContent-Disposition : form-data; name="model"',
    'name="note"\r\nX: y\x00',
    'name="note"\r\n' + "".join(f"X{number}: y\r\n" for number in range(20)) + "Y: z",
    'name="note"\r\nX: ' + "y" * 9000,
    'name=""',
    "",
]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("cut", [None, 1])
def test_heads_that_parsers_read_differently_are_refused(head: str, cut: int | None) -> None:
    part = f"Content-Disposition: form-data; {head}\r\n\r\nother".encode()
    with pytest.raises(MalformedRequestError):
        read(form(text("model"), part), cut=cut)


@pytest.mark.parametrize(
    "values",
    [
        ["multipart/form-data"],
        ["multipart/form-data; boundary=b; boundary=c"],
        ["multipart/form-data; boundary=b", "multipart/form-data; boundary=c"],
        ["multipart/form-data; boundary*=utf-8''b"],
        ['multipart/form-data; boundary="b\\c"'],
        ['multipart/form-data; boundary="b "'],
        ["multipart/form-data; boundary=b;charset=utf-16"],
        ["multipart/form-data; boundary=" + "b" * 71],
        ["multipart/mixed; boundary=b"],
        ["multipart/form-data; boundary="],
    ],
)
def test_boundaries_that_parsers_read_differently_are_refused(values: list[str]) -> None:
    with pytest.raises(MalformedRequestError, match="content-type of a form must be"):
        boundary_of(values)


def test_boundary_goes_upstream_in_one_form() -> None:
    for field in ("multipart/form-data; boundary=b-1", 'Multipart/Form-Data;boundary="b-1";charset=UTF-8'):
        assert content_type_of(boundary_of([field])) == "multipart/form-data; boundary=b-1"
    assert content_type_of(b"===1==") == 'multipart/form-data; boundary="===1=="'


def test_model_name_that_holds_the_boundary_is_refused() -> None:
    reader = FormReader(b"model")
    reader.feed(form(text("model")).replace(b"--b", b"--model"))
    with pytest.raises(MalformedRequestError):
        reader.rename("my--model")


# Against other parsers.

_LENIENT_DELIMITER = re.compile(rb"(?:\A|\r\n|\n|\r)--b[ \t]*(--)?[ \t]*(?:\r\n|\n|\r|\Z)")
_LENIENT_NAME = re.compile(rb"name\s*=\s*\"?([^\";]*)", re.I)


def lenient_models(body: bytes) -> list[bytes]:
    """The values of all parts that a careless server could take for the model."""
    models: list[bytes] = []
    for part in _LENIENT_DELIMITER.split(body):
        head, _, value = re.sub(rb"\r\n|\r", b"\n", part or b"").partition(b"\n\n")
        name = _LENIENT_NAME.search(head)
        if name is not None and name[1].strip().lower().startswith(b"model"):
            models.append(value)
    return models


async def models_by_aiohttp(body: bytes) -> list[bytes]:
    stream = aiohttp.StreamReader(BaseProtocol(asyncio.get_running_loop()), 1 << 20)
    stream.feed_data(body)
    stream.feed_eof()
    reader = MultipartReader({"Content-Type": 'multipart/form-data; boundary="b"'}, stream)
    models: list[bytes] = []
    while (part := await reader.next()) is not None:
        assert isinstance(part, aiohttp.BodyPartReader)
        value = bytes(await part.read())
        if (part.name or "").lower().startswith("model"):
            models.append(value)
    return models


FRAGMENTS = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"--b",
        b"--b--",
        b"\r\n--b\r\n",
        b"\n--b\n",
        b"--b\r\n",
        b" ",
        b"\t",
        b'"',
        b"\\",
        b";",
        b":",
    ),
    *(
        b"\r\n\r\n",
        b'name="model"',
        b"name=model",
        b'; filename="x"',
        b"; filename*=utf-8''model",
        b"Content-Length: 3\r\n",
    ),
    *(
        b"Content-Disposition: form-data; ",
        text("model", "evil"),
        text("MODEL", "evil"),
        b"Content-Type: multipart/mixed\r\n",
    ),
]


async def test_no_other_parser_finds_another_model_in_an_accepted_form() -> None:
    chance = random.Random(13)
    accepted = 0
    for _ in range(3000):
        parts = [text("model"), text("note", "x" * chance.randrange(9)), FILE[:120], STREAM]
        chance.shuffle(parts)
        body = bytearray(form(*parts))
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(body) + 1)
            body[at : at + chance.choice((0, 0, 1, 2))] = chance.choice(FRAGMENTS)
        try:
            _, output = read(bytes(body), cut=chance.choice((None, 1, 10)))
        except MalformedRequestError:
            continue
        accepted += 1
        assert lenient_models(output) == [MODEL.encode()], body
        assert await models_by_aiohttp(output) == [MODEL.encode()], body
    assert accepted > 100
