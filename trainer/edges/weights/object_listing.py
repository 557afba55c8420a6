"""Lists objects of a bucket by S3's API, which Google Cloud Storage and R2 speak too, with path-style addressing."""

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote
from xml.parsers import expat

from policy.training.weights import BucketSource
from runtime.daemon_threads import in_daemon_thread
from trainer.backend import WeightsError
from trainer.edges.weights.downloads import Downloads, OtherRegionError
from trainer.edges.weights.remote_files import MAX_FILES, Bearer, RefusedError, RemoteFile, Request, origin_of
from trainer.edges.weights.signing import Keys, SignedAccess, read_keys

_DEFAULT_REGION = "us-east-1"
_REGION = re.compile(r"[a-z0-9-]{1,32}")
_SAFE = "-_.~"
_MAX_OBJECTS = 2 * MAX_FILES
"""The most objects that are looked at; patterns may leave most of them out."""


@dataclass(frozen=True, slots=True)
class ObjectBucket:
    """A bucket as it is asked. `operator_origin`: that of `url`, if the operator has set it."""

    source: BucketSource
    url: str
    region: str
    keys: Keys | None = field(repr=False)
    operator_origin: str = ""

    def request(self, key: str, query: str = "") -> Request:
        path = f"/{self.source.bucket}" + (f"/{quote(key, safe=_SAFE + '/')}" if key else "")
        access = Bearer() if self.keys is None else SignedAccess(self.keys, self.region)
        return Request(f"{self.url}{path}{query}", access, self.operator_origin)


async def bucket_files(downloads: Downloads, source: BucketSource, credential: str | None) -> list[RemoteFile]:
    """The objects below the key; the one of the key, if there are none or they cannot be listed.

    SourceAwayError; WeightsError.
    """
    keys = None if credential is None else read_keys(credential)
    bucket = _object_bucket(downloads, source, keys, keys.region if keys and keys.region else None)
    try:
        return await _listed(downloads, bucket)
    except OtherRegionError as error:
        if not _REGION.fullmatch(error.region) or error.region == bucket.region:
            raise WeightsError("the source does not answer for the bucket's region") from None
        bucket = _object_bucket(downloads, source, keys, error.region)
    try:
        return await _listed(downloads, bucket)
    except OtherRegionError:
        raise WeightsError("the source does not answer for the bucket's region") from None


def _object_bucket(downloads: Downloads, source: BucketSource, keys: Keys | None, region: str | None) -> ObjectBucket:
    """Return where a bucket is. `region`: None if it is not known."""
    own = downloads.terms.s3_url
    if source.scheme == "r2":
        return ObjectBucket(source, f"https://{source.account}.r2.cloudflarestorage.com", region or "auto", keys)
    if source.scheme == "gs":
        return ObjectBucket(source, "https://storage.googleapis.com", region or "auto", keys)
    region = region or _DEFAULT_REGION
    if own is not None:
        return ObjectBucket(source, own, region, keys, origin_of(own))
    if not _REGION.fullmatch(region):
        raise WeightsError("the region of its secret is none")
    end = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return ObjectBucket(source, f"https://s3.{region}.{end}", region, keys)


async def _listed(downloads: Downloads, bucket: ObjectBucket) -> list[RemoteFile]:
    key = bucket.source.key
    prefix = f"{key}/" if key else ""
    try:
        sizes = await _sizes(downloads, bucket, prefix)
    except RefusedError:
        if not key:
            raise
        sizes = {}
    if not sizes and key:
        return [RemoteFile("", bucket.request(key))]
    return [RemoteFile(name.removeprefix(prefix), bucket.request(name), size) for name, size in sizes.items()]


async def _sizes(downloads: Downloads, bucket: ObjectBucket, prefix: str) -> dict[str, int]:
    """The sizes of all objects whose keys begin so, without those that stand for a directory."""
    sizes = dict[str, int]()
    token = ""
    while len(sizes) <= _MAX_OBJECTS:
        more = f"continuation-token={quote(token, safe=_SAFE)}&" if token else ""
        query = f"?{more}list-type=2&max-keys=1000&prefix={quote(prefix, safe=_SAFE)}"
        content, _ = await downloads.read(bucket.request("", query))
        page = await in_daemon_thread(_page, content)
        sizes |= {key: size for key, size in page.sizes.items() if key.startswith(prefix) and not key.endswith("/")}
        if not page.token or page.token == token:
            return sizes
        token = page.token
    raise WeightsError(f"the bucket has more than {_MAX_OBJECTS} objects there")


@dataclass(slots=True)
class _Page:
    """A page of a bucket's list; reads itself while a parser reads. `token`: that of the next page; "": the last."""

    sizes: dict[str, int] = field(default_factory=dict)
    token: str = ""
    _open: list[str] = field(default_factory=list)
    _text: list[str] = field(default_factory=list)
    _key: str = ""

    def start(self, name: str, _attributes: dict[str, str]) -> None:
        self._open.append(name.rpartition("}")[2])
        self._text.clear()

    def end(self, _name: str) -> None:
        content = "".join(self._text)
        match self._open:
            case ["ListBucketResult", "Contents", "Key"]:
                self._key = content
            case ["ListBucketResult", "Contents", "Size"]:
                self.sizes[self._key] = int(content)
            case ["ListBucketResult", "NextContinuationToken"]:
                self.token = content
        self._open.pop()
        self._text.clear()

    def characters(self, text: str) -> None:
        self._text.append(text)


def _page(content: bytes) -> _Page:
    page = _Page()
    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartElementHandler = page.start
    parser.EndElementHandler = page.end
    parser.CharacterDataHandler = page.characters
    parser.StartDoctypeDeclHandler = _refuse
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, ValueError):
        raise WeightsError("the bucket's list cannot be read") from None
    return page


def _refuse(*_declaration: Any) -> None:
    raise ValueError("a declaration")
