"""A process that delivers results until it is killed: `python -m … REDIS_URL LINKS CA_FILE`. Prints when it begins."""

import asyncio
import sys

from tests.contracts.async_delivery.delivery_world import PROCESS, Place, delivering


async def main(redis_url: str, links: str, ca_file: str) -> None:
    async with delivering(Place(redis_url, links, ca_file), holder=PROCESS):
        print("delivering", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
