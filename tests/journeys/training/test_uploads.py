"""Archives that a workspace pushes with a job, through control's own S3, are where the job's commands run.

The client here is signed by hand. `tests/clients/` has the original's, with boto3.
"""

import io
import os
import tarfile
from typing import Any

import aiohttp
import pytest

from tests.journeys.training.scene import Training
from tests.s3_client import S3

TRAIN = b"import os\nprint('trained with', open('data/x.txt').read(), os.path.getsize('weights.bin'))\n"
MIB = 1024 * 1024


def archive(**files: bytes) -> bytes:
    """A tar archive as `truss train push` makes it; `__` in a name is `/`, `_` a dot."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name.replace("__", "/").replace("_", "."))
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


async def uploaded(training: Training, session: aiohttp.ClientSession, content: bytes) -> dict[str, Any]:
    """The artifact of a job: this archive, uploaded in parts of 8 MiB."""
    credentials = await training.operator.call("GET", "/v1/blobs/credentials/train")
    client = S3(session, credentials)
    answer = await client.multipart(*(content[at : at + 8 * MIB] for at in range(0, len(content), 8 * MIB)))
    assert answer.status == 200, answer.text
    return {name: credentials[name] for name in ("s3_bucket", "s3_key")}


@pytest.mark.parametrize("size_bytes", [1000, 17 * MIB], ids=["one part", "several parts"])
async def test_pushed_files_are_where_each_node_runs(
    training: Training, session: aiohttp.ClientSession, size_bytes: int
) -> None:
    content = archive(train_py=TRAIN, data__x_txt=b"the data", weights_bin=os.urandom(size_bytes))
    artifacts = [await uploaded(training, session, content)]
    job = await training.create(
        "python3 train.py", runtime={"artifacts": artifacts}, compute={"node_count": 2, "cpu_count": 1}
    )
    await job.until("COMPLETED")
    assert await job.lines("trained with") == [f"trained with the data {size_bytes}"] * 2
    (url,) = (await training.operator.call("GET", f"{job.path}/download"))["artifact_presigned_urls"]
    async with session.get(url) as answer:
        assert await answer.read() == content
    again = await job.recreate()
    await again.until("COMPLETED")
    assert len(await again.lines("trained with")) == 2


async def test_commands_run_in_a_directory_of_what_was_pushed(
    training: Training, session: aiohttp.ClientSession
) -> None:
    artifacts = [await uploaded(training, session, archive(src__run_sh=b"echo it runs in $(basename $PWD)"))]
    job = await training.create("sh run.sh", runtime={"artifacts": artifacts, "working_directory": "src"})
    await job.until("COMPLETED")
    assert await job.lines() == ["it runs in src"]


async def test_archive_that_leads_elsewhere_fails_the_job(training: Training, session: aiohttp.ClientSession) -> None:
    artifacts = [await uploaded(training, session, archive(**{"____x": b"a"}))]
    job = await training.create("true", runtime={"artifacts": artifacts})
    ended = await job.until("DEPLOY_FAILED")
    assert "cannot be unpacked: the name '//x' is absolute" in ended["error_message"]
