"""Names of container images."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.training.images import IMAGE_PATTERN, full_name, is_image, unused_notice

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("python", "docker.io/library/python"),
        ("python:3.11", "docker.io/library/python:3.11"),
        ("pytorch/pytorch:2.5.1-cuda12.4-cudnn9-devel", "docker.io/pytorch/pytorch:2.5.1-cuda12.4-cudnn9-devel"),
        ("ghcr.io/team/train-base:latest", "ghcr.io/team/train-base:latest"),
        (f"localhost:5000/a/b_c:V1@{DIGEST}", f"localhost:5000/a/b_c:V1@{DIGEST}"),
        (f"localhost/a@{DIGEST}", f"localhost/a@{DIGEST}"),
        ("a__b/c--d.e", "docker.io/a__b/c--d.e"),
        ("Host/a", "Host/a"),
        ("oci-archive:file", "docker.io/library/oci-archive:file"),
        ("0123456789ab", "docker.io/library/0123456789ab"),
    ],
)
def test_name_is_completed_as_docker_does(name: str, full: str) -> None:
    assert is_image(name)
    assert full_name(name) == full
    assert full_name(full) == full


@pytest.mark.parametrize(
    "name",
    [
        *("", "Python", "a b", "a\n", "\na", "-v", "--rm", "a.", "a___b", "a/", "/a", "a//b", "a:", "a:b:c", "a@b"),
        *("docker://a", "docker:a/b", "dir:/etc", "oci-archive:/tmp/a", "[::1]/a", "a:.b", "a:-b", "ä", "a@sha256:12"),
        *("a;id", "a$(id)", "a`id`", "a|b", "a&b", "a>b", "a'b", 'a"b', "a\\b", "a*", "a?", "a#b", "a~b", "a{b}"),
        *(f"a@{DIGEST.upper()}", f"a@{DIGEST}0", f"a@sha512:{'0' * 128}", "a" * 513, "a:" + "b" * 129),
    ],
)
def test_what_is_no_name_is_refused(name: str) -> None:
    assert not is_image(name)
    with pytest.raises(ValueError, match="is not the name of a container image"):
        full_name(name)


@given(st.from_regex(IMAGE_PATTERN))
def test_no_name_has_a_character_that_a_shell_reads(text: str) -> None:
    if is_image(text):
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", full_name(text))


def test_first_node_alone_says_that_an_image_is_not_used() -> None:
    assert unused_notice("python:3.11", 0).startswith("the image python:3.11 is not used: ")
    assert unused_notice("python:3.11", 1) == unused_notice(None, 0) == ""
