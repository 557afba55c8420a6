"""The forms of bodies: aws-chunked in any division, and the list of parts of a completion."""

import pytest

from control.api.uploads.chunks import ChunkDecoder
from control.api.uploads.completions import listed_parts
from control.api.uploads.s3_errors import S3Error
from control.resources.uploads.uploads import ListedPart
from tests.s3_client import completion

FRAMED = b"5\r\nhello\r\n6\r\n world\r\n0\r\nx-amz-checksum-crc32:DUoRhQ==\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_chunks_are_read_however_they_arrive(size: int) -> None:
    decoder = ChunkDecoder()
    content = b"".join(piece for at in range(0, len(FRAMED), size) for piece in decoder.feed(FRAMED[at : at + size]))
    assert content == b"hello world"
    assert decoder.has_ended
    assert decoder.trailers == {"x-amz-checksum-crc32": "DUoRhQ=="}


def test_body_without_its_end_has_not_ended() -> None:
    decoder = ChunkDecoder()
    assert b"".join(decoder.feed(FRAMED[:-2])) == b"hello world"
    assert not decoder.has_ended


@pytest.mark.parametrize(
    "framed",
    [
        b"x\r\n",
        b"-1\r\n",
        b"5\r\nhello6\r\n",
        b"5\r\nhelloXX\r\n",
        b"0\r\nno colon\r\n\r\n",
        b"0\r\n\r\nmore",
        b"1" * 2000,
        b"0\r\na:b\r\na:b\r\n\r\n",
        b"0\r\n" + b"".join(b"%d:b\r\n" % name for name in range(11)) + b"\r\n",
    ],
)
def test_broken_chunks_are_refused(framed: bytes) -> None:
    decoder = ChunkDecoder()
    with pytest.raises(S3Error, match="aws-chunked"):
        list(decoder.feed(framed))


def test_parts_of_a_completion_are_read() -> None:
    assert listed_parts(completion('"a"', "b")) == [ListedPart(1, "a"), ListedPart(2, "b")]


ENTITY = b'<!DOCTYPE a [<!ENTITY e "x">]>' + completion("&e;")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<a/>",
        b"<CompleteMultipartUpload><Part>",
        b"<CompleteMultipartUpload><Other/></CompleteMultipartUpload>",
        ENTITY,
        ENTITY.decode().encode("utf-16"),
        b"<CompleteMultipartUpload><Part><PartNumber>0</PartNumber></Part></CompleteMultipartUpload>",
        b"<CompleteMultipartUpload><Part><PartNumber>10001</PartNumber></Part></CompleteMultipartUpload>",
        b"<CompleteMultipartUpload><Part><A><B/></A></Part></CompleteMultipartUpload>",
    ],
)
def test_other_lists_of_parts_are_refused(body: bytes) -> None:
    with pytest.raises(S3Error) as refusal:
        listed_parts(body)
    assert refusal.value.code == "MalformedXML"
