"""Names of container images, by the grammar of references of the OCI's distribution project.

A name reaches a command line on machines of a Ray cluster: one that matches has nothing in it that a shell would read.
See docs/reference/training.md#images.
"""

import re

MAX_IMAGE_CHARS = 512
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY = rf"{_LABEL}(\.{_LABEL})*(:[0-9]{{1,5}})?"
_PART = "[a-z0-9]+((_|__|[.]|-+)[a-z0-9]+)*"
IMAGE_PATTERN = rf"^({_REGISTRY}/)?{_PART}(/{_PART})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?$"
"""The grammar, for schemas. `is_image` says the same without nested repetitions, which take memory on hostile text."""
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_TAG = re.compile("[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_PORT = re.compile("[0-9]{1,5}")
_SEPARATOR = re.compile("_{1,2}|[.]|-+")
_PLAIN = re.compile("[a-z0-9]+")
_HOST_LABEL = re.compile("[A-Za-z0-9-]+")
_DEFAULT_REGISTRY = "docker.io"
_DEFAULT_OWNER = "library"


def is_image(name: str) -> bool:
    """Return whether it is a name of an image, with a tag, a digest, both or neither."""
    if len(name) > MAX_IMAGE_CHARS:
        return False
    path, at, digest = name.partition("@")
    *above, last = path.split("/")
    repository, colon, tag = last.partition(":")
    if (at and not _DIGEST.fullmatch(digest)) or (colon and not _TAG.fullmatch(tag)):
        return False
    first, *rest = (*above, repository)
    return all(map(_is_part, rest)) and (_is_part(first) or (bool(rest) and _is_registry(first)))


def _is_part(text: str) -> bool:
    return all(map(_PLAIN.fullmatch, _SEPARATOR.split(text)))


def _is_registry(text: str) -> bool:
    host, colon, port = text.partition(":")
    labels = host.split(".")
    is_host = all(_HOST_LABEL.fullmatch(label) and label[0] != "-" != label[-1] for label in labels)
    return is_host and (not colon or _PORT.fullmatch(port) is not None)


def full_name(name: str) -> str:
    """The name with its registry, as Docker completes it: no machine's settings decide. ValueError if it is none.

    A complete name begins with a host, so it is no transport of Podman's either (`dir:…`, `oci-archive:…`), nor an id.
    """
    if not is_image(name):
        raise ValueError(f"{name[:100]!r} is not the name of a container image")
    head, slash, _ = name.partition("/")
    if not slash:
        return f"{_DEFAULT_REGISTRY}/{_DEFAULT_OWNER}/{name}"
    is_registry = "." in head or ":" in head or head == "localhost" or head != head.lower()
    return name if is_registry else f"{_DEFAULT_REGISTRY}/{name}"


def unused_notice(image: str | None, rank: int) -> str:
    """The line in the log of a job's first node that its image is not used; empty if there is none to say."""
    if image is None or rank:
        return ""
    return f"the image {image} is not used: this backend runs the programs of its machines (docs: training, images)"
