"""A store as `s3://` is one: objects in parts, no directories, no rename; and it fails as a test wishes."""

import uuid
from typing import Any

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem


class Objects:
    """The store's contents, and the faults that it shows."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.keys: list[str] = []
        """The keys, in the order of their writing."""
        self.room_bytes: int | None = None
        self.is_away = False
        self.loses_a_byte = False
        self.largest_part = 0

    def check(self) -> None:
        if self.is_away:
            raise ObjectError("cannot connect to https://user:pa55word@store.example/bucket?X-Signature=5ecret")


class ObjectError(Exception):
    """Like botocore's: not an OSError."""


def object_store() -> tuple[str, Objects]:
    """The URL of a new store, and the store."""
    objects = Objects()
    scheme = f"objects{uuid.uuid4().hex}"

    class FileSystem(ObjectFileSystem):
        protocol = scheme
        bucket = objects

    fsspec.register_implementation(scheme, FileSystem)
    return f"{scheme}://bucket/prefix", objects


class ObjectFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    bucket: Objects

    def ls(self, path: str, detail: bool = True, **_kwargs: Any) -> Any:
        self.bucket.check()
        start = path.rstrip("/") + "/"
        entries: dict[str, dict[str, Any]] = {}
        for key, content in self.bucket.contents.items():
            if key.startswith(start):
                name, is_below, _ = key[len(start) :].partition("/")
                kind = "directory" if is_below else "file"
                entries[name] = {"name": start + name, "type": kind, "size": 0 if is_below else len(content)}
        if not entries:
            raise FileNotFoundError(path)
        return list(entries.values()) if detail else sorted(entries)

    def info(self, path: str, **_kwargs: Any) -> dict[str, Any]:
        self.bucket.check()
        key = path
        if key not in self.bucket.contents:
            raise FileNotFoundError(key)
        return {"name": key, "type": "file", "size": len(self.bucket.contents[key])}

    def rm_file(self, path: str) -> None:
        self.bucket.check()
        del self.bucket.contents[path]

    def rmdir(self, path: str) -> None:
        raise FileNotFoundError(path)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_kwargs: Any) -> bytes:
        self.bucket.check()
        return self.bucket.contents[path][start:end]

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **kwargs: Any) -> "ObjectFile":
        self.bucket.check()
        return ObjectFile(self, path, mode, block_size, cache_options=kwargs.get("cache_options"))


class ObjectFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    def _initiate_upload(self) -> None:
        self.parts: list[bytes] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        bucket = self.fs.bucket
        bucket.check()
        part = self.buffer.getvalue()
        bucket.largest_part = max(bucket.largest_part, len(part))
        if bucket.room_bytes is not None and sum(map(len, (*self.parts, part))) > bucket.room_bytes:
            raise ObjectError("QuotaExceeded")
        self.parts.append(part)
        if final:
            content = b"".join(self.parts)
            bucket.contents[self.path] = content[:-1] if bucket.loses_a_byte else content
            bucket.keys.append(self.path)
        return True
