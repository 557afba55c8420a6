"""Weights from a hub, a store and a host on loopback, as they come into a job's directory."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from policy.training.weights import FilePatterns, Weights
from tests.waiting import eventually
from tests.weights_sources import CDN, FILES, TOKEN, WeightsSources, serving_weights
from trainer.backend import WeightsError
from trainer.edges.weights import WeightsFetcher, fetching
from trainer.settings import CheckpointSizes, WeightsTerms

LARGE = os.urandom(3_000_000)
URL = f"https://{FILES}/model.bin"
KEYS = '{"access_key_id": "AKIATEST", "secret_access_key": "the-secret-access-key", "region": "eu-test-1"}'


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[WeightsSources]:
    with serving_weights(tmp_path) as serving:
        yield serving


@dataclass
class Job:
    """A job's directory, and what was told it."""

    directory: Path
    terms: WeightsTerms
    sizes: CheckpointSizes = field(default_factory=CheckpointSizes)
    lines: list[str] = field(default_factory=list)

    async def fetch(self, *weights: Weights) -> None:
        await WeightsFetcher(self.terms, self.sizes).fetch(weights, self.directory, "ws_1", self.lines.append)

    async def error(self, *weights: Weights) -> str:
        with pytest.raises(WeightsError) as error:
            await self.fetch(*weights)
        return str(error.value)

    def files(self) -> dict[str, bytes]:
        root = self.directory / "weights"
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def job(tmp_path: Path, sources: WeightsSources, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(fetching, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(fetching, "LONGEST_PAUSE_S", 0.02)
    directory = tmp_path / "files"
    directory.mkdir()
    terms = WeightsTerms(
        hub_url=sources.url, s3_url=sources.url, egress_allow=sources.link, ca_pem=Path(sources.ca_file).read_text()
    )
    return Job(directory, terms)


# --- the sources ---


async def test_model_of_a_hub_is_there_with_its_directories(job: Job, sources: WeightsSources) -> None:
    sources.models["acme/tiny"] = {"config.json": b"{}", "a b/model#1.safetensors": LARGE, "README.md": b"read"}
    patterns = FilePatterns(("config.json", "**/*.safetensors", "*.md"), ("*.md",))

    await job.fetch(Weights("hf://acme/tiny@refs/pr/1", "models/tiny", patterns=patterns))

    assert job.files() == {"models/tiny/config.json": b"{}", "models/tiny/a b/model#1.safetensors": LARGE}
    assert job.lines[0] == "weights.0 (hf://acme/tiny@refs/pr/1): fetching 2 files (2.9 MiB)"
    assert job.lines[-1] == (
        "weights.0 (hf://acme/tiny@refs/pr/1): 2 files (2.9 MiB) fetched to $BT_WEIGHTS_DIR/models/tiny"
    )


async def test_token_goes_to_the_hub_and_not_to_where_it_redirects(job: Job, sources: WeightsSources) -> None:
    sources.models["acme/gated-one"] = {"model.safetensors": LARGE}

    await job.fetch(Weights("hf://acme/gated-one", "m", f"{TOKEN}\n"))

    assert job.files() == {"m/model.safetensors": LARGE}
    tokens = {one.host.partition(":")[0]: one.headers.get("Authorization") for one in sources.requests}
    assert tokens == {"127.0.0.1": f"Bearer {TOKEN}", CDN: None}


@pytest.mark.parametrize(
    ("bucket", "credential"), [("public", None), ("private", KEYS), ("elsewhere", KEYS), ("a.b-c", None)]
)
async def test_objects_below_a_key_are_there(
    job: Job, sources: WeightsSources, bucket: str, credential: str | None
) -> None:
    objects = {"llama/a&b.json": b"1", "llama/x/y +~.bin": LARGE, "llama/x/z": b"2", "llama/": b"", "llama-2/no": b"3"}
    sources.buckets[bucket] = objects

    await job.fetch(Weights(f"s3://{bucket}/llama/", "w", credential))

    assert job.files() == {"w/a&b.json": b"1", "w/x/y +~.bin": LARGE, "w/x/z": b"2"}


@pytest.mark.parametrize("bucket", ["public", "unlisted"])
async def test_one_object_is_the_file_at_its_place(job: Job, sources: WeightsSources, bucket: str) -> None:
    sources.buckets[bucket] = {"data/train.tar": LARGE, "data/train.tar.md5": b"no"}
    await job.fetch(Weights(f"s3://{bucket}/data/train.tar", "in/train.tar"))
    assert job.files() == {"in/train.tar": LARGE}


async def test_file_of_a_url_is_at_its_place(job: Job, sources: WeightsSources) -> None:
    sources.files["/model.bin?sig=a%2Fb"] = LARGE
    sources.redirects["/old"] = "/model.bin?sig=a%2Fb"
    await job.fetch(Weights(f"{URL}?sig=a%2Fb", "a/one.bin"), Weights(f"https://{FILES}/old", "two.bin", "key-1234"))
    assert job.files() == {"a/one.bin": LARGE, "two.bin": LARGE}
    assert [one.headers.get("Authorization") for one in sources.requests] == [
        None,
        "Bearer key-1234",
        "Bearer key-1234",
    ]
    assert "sig" not in "".join(job.lines)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_files_belong_to_the_user_of_the_job(job: Job, sources: WeightsSources) -> None:
    sources.files["/model.bin"] = b"m"
    os.chown(job.directory, 271_828, 271_828)
    await job.fetch(Weights(URL, "a/b"))
    paths = [*(job.directory / "weights").rglob("*"), job.directory / "weights"]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in paths} == {(271_828, 271_828)}
    assert (job.directory / "weights/a/b").stat().st_mode & 0o777 == 0o644


# --- what breaks off ---


async def test_download_that_breaks_off_goes_on_where_it_was(job: Job, sources: WeightsSources) -> None:
    sources.files["/model.bin"] = LARGE
    sources.cut_after[:] = [1_000_000, 700_000]

    await job.fetch(Weights(URL, "m"))

    assert job.files() == {"m": LARGE}
    assert [one.headers.get("Range") for one in sources.requests] == [None, "bytes=1000000-", "bytes=1700000-"]


async def test_file_that_changed_meanwhile_is_downloaded_again(job: Job, sources: WeightsSources) -> None:
    sources.files["/model.bin"] = LARGE
    sources.cut_after[:] = [1_000_000]
    changed = LARGE[::-1]

    def change(text: str) -> None:
        if "trying again" in text:
            sources.files["/model.bin"] = changed

    await WeightsFetcher(job.terms, job.sizes).fetch([Weights(URL, "m")], job.directory, "ws_1", change)

    assert job.files() == {"m": changed}


async def test_source_that_cannot_answer_is_asked_again_and_given_up(job: Job, sources: WeightsSources) -> None:
    sources.files["/model.bin"] = b"m"
    sources.answers[:] = [503, 429]
    await job.fetch(Weights(URL, "m"))
    sources.answers[:] = [500] * fetching.MAX_FAILURES
    error = await job.error(Weights(URL, "n"))
    assert error == f"weights.0 ({URL}) could not be fetched: the source answered 500, 8 times"


async def test_content_that_is_not_that_of_the_list_is_refused(job: Job, sources: WeightsSources) -> None:
    sources.models["acme/tiny"] = {"model.safetensors": LARGE}

    def spoil(_text: str) -> None:
        sources.models["acme/tiny"] = {"model.safetensors": LARGE[::-1]}

    with pytest.raises(WeightsError, match=r"another content than the source's list says \(SHA-256\)"):
        await WeightsFetcher(job.terms, job.sizes).fetch([Weights("hf://acme/tiny", "m")], job.directory, "ws_1", spoil)


async def test_cancelled_fetch_leaves_the_source(job: Job, sources: WeightsSources) -> None:
    sources.buckets["public"] = {"model": LARGE}
    sources.pause = threading.Event()
    task = asyncio.create_task(job.fetch(Weights("s3://public/model", "m")))
    await eventually(lambda: "/public/model" in sources.targets("127.0.0.1"))

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    sources.pause.set()
    assert job.files() == {}


# --- what is refused ---


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (Weights("hf://acme/none", "m"), "asks for a credential (401); name a secret in auth_secret_name"),
        (Weights("hf://acme/gated-one", "m", "wrong"), "refuses the credential of auth_secret_name (403)"),
        (Weights("hf://acme/gated-one", "m", "two words"), "its secret cannot be sent as a token"),
        (Weights("hf://acme/tiny@v2", "m"), "the source has no such files (404)"),
        (Weights("hf://acme/tiny", "m", patterns=FilePatterns(("*.bin",))), "it has no files that allow_patterns"),
        (Weights("s3://private/a", "m"), "asks for a credential (403)"),
        (Weights("s3://private/a", "m", KEYS.replace("AKIA", "XKIA")), "refuses the credential of auth_secret_name"),
        (Weights("s3://private/a", "m", "a token"), 'its secret must be {"access_key_id": "…"'),
        (Weights("s3://private/a", "m", '{"access_key_id": 1, "secret_access_key": "x"}'), "its secret must be"),
        (Weights("s3://public/none", "m"), "the source has no such files (404)"),
        (Weights(f"https://{FILES}/none", "m"), "the source has no such files (404)"),
        (Weights("https://127.0.0.1/x", "m"), "the source may not be called (the address is not public"),
        (Weights("https://localhost/x", "m"), "internal and local host names may not be used"),
        (Weights(f"https://{FILES}/to-loopback", "m"), "redirects to a URL that may not be called (the address"),
        (Weights(f"https://{FILES}/to-metadata", "m"), "metadata addresses are never dialled"),
        (Weights(f"https://{FILES}/to-plain", "m"), "must start with https://"),
        (Weights(f"https://{FILES}/round", "m"), "the source redirects too often"),
    ],
    ids=lambda value: value.shown_source if isinstance(value, Weights) else "",
)
async def test_error_names_the_entry_and_the_cause(
    job: Job, sources: WeightsSources, weights: Weights, reason: str
) -> None:
    sources.models |= {"acme/gated-one": {"a": b"1"}, "acme/tiny": {"a": b"1"}}
    sources.buckets |= {"private": {"a/b": b"1"}, "public": {"a/b": b"1"}}
    sources.redirects |= {
        "/to-loopback": "https://127.0.0.1/x",
        "/to-metadata": "https://169.254.169.254/latest",
        "/to-plain": f"http://{FILES}/model.bin",
        "/round": "/round",
    }
    error = await job.error(weights)
    assert error.startswith(f"weights.0 ({weights.source}) could not be fetched: ")
    assert reason in error
    assert (weights.credential or "?") not in error
    assert "\n" not in error


async def test_operators_hub_is_no_source_of_urls(job: Job, sources: WeightsSources) -> None:
    """The operator's own addresses may be private: only their own protocols reach them."""
    port = sources.url.rpartition(":")[2]
    error = await job.error(Weights(f"https://127.0.0.1:{port}/acme/tiny/resolve/main/a", "m"))
    assert "may not be called" in error
    assert sources.requests == []


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/x", "a//b", "a\x1b", "a/" * 40 + "b"], ids=repr)
async def test_name_that_leads_elsewhere_is_refused(job: Job, sources: WeightsSources, path: str) -> None:
    sources.models["acme/tiny"] = {"ok": b"1", path: b"1"}
    error = await job.error(Weights("hf://acme/tiny", "m"))
    assert "a file whose name cannot be used" in error
    assert not (job.directory / "weights").exists()


async def test_link_in_the_directory_is_not_followed(job: Job, sources: WeightsSources, tmp_path: Path) -> None:
    sources.files["/model.bin"] = b"m"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (job.directory / "weights").symlink_to(elsewhere)
    error = await job.error(Weights(URL, "m"))
    assert "could not be written" in error
    assert list(elsewhere.iterdir()) == []


async def test_weights_of_a_job_are_bounded_together(job: Job, sources: WeightsSources) -> None:
    sources.models["acme/tiny"] = {"a": b"a" * 600}
    sources.files["/model.bin"] = b"m" * 500
    job.sizes = CheckpointSizes(1000)
    error = await job.error(Weights("hf://acme/tiny", "m"), Weights(URL, "n"))
    assert error.startswith(f"weights.1 ({URL}) could not be fetched: the job's weights would have more than")
    assert "TOLLGATE_WEIGHTS_MAX_SIZE" in error


async def test_other_workspaces_bound_is_its_own(job: Job, sources: WeightsSources) -> None:
    sources.files["/model.bin"] = b"m" * 500
    job.sizes = CheckpointSizes(100, {"ws_1": 1000})
    await job.fetch(Weights(URL, "n"))
    job.sizes = replace(job.sizes, named_bytes={})
    assert "TOLLGATE_WEIGHTS_MAX_SIZE" in await job.error(Weights(URL, "o"))


async def test_machines_that_share_the_directory_get_whole_files(job: Job, sources: WeightsSources) -> None:
    sources.files["/model.bin"] = LARGE
    await asyncio.gather(job.fetch(Weights(URL, "m/x")), job.fetch(Weights(URL, "m/x")))
    assert job.files() == {"m/x": LARGE}


async def test_file_where_a_directory_would_be_is_refused(job: Job, sources: WeightsSources) -> None:
    sources.buckets["public"] = {"k/a": b"1", "k/a/b": b"2"}
    assert "could not be written: Not a directory" in await job.error(Weights("s3://public/k", "m"))


@pytest.fixture
async def small_disk(tmp_path: Path) -> AsyncIterator[Path]:
    """A file system of a megabyte."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mounting = await asyncio.create_subprocess_exec(
        *("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)), stderr=asyncio.subprocess.DEVNULL
    )
    if await mounting.wait():
        pytest.skip("no file system can be mounted here")
    yield directory
    await (await asyncio.create_subprocess_exec("umount", "-l", str(directory))).wait()


async def test_full_disk_is_named(job: Job, sources: WeightsSources, small_disk: Path) -> None:
    sources.files["/model.bin"] = LARGE
    job.directory = small_disk
    error = await job.error(Weights(URL, "m"))
    assert error == f"weights.0 ({URL}) could not be fetched: it cannot be written (No space left on device)"
    assert job.files() == {}
