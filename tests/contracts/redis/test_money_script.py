"""money.lua, which comes before all spend scripts: it calculates, packs and names windows as the Python reference."""

import random
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest
import redis

from policy.limits.kinds import Unit
from policy.limits.windows import DAY_MS
from policy.spend.script_constants import spend_constants
from policy.spend.spend_hash import (
    LIMB,
    Reserved,
    pack_amount,
    pack_reservation,
    pack_spent,
    unpack_amount,
    unpack_spent,
    window_name,
)
from tests.redis_server import REDIS_BINARIES, private_redis

_KEY = "tg:{g|group}"
_MONEY = "".join(
    resources.files(package).joinpath(name).read_text("utf-8")
    for package, name in (("policy.limits", "month.lua"), ("policy.spend", "money.lua"))
)


@pytest.fixture(scope="module", params=REDIS_BINARIES)
def client(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with (
        private_redis(binary=request.param) as server,
        redis.Redis(unix_socket_path=str(server.socket_path)) as client,
    ):
        yield client


def _run(client: redis.Redis, body: str, *arguments: bytes | str | int) -> Any:
    return client.eval(spend_constants() + _MONEY + body, 1, _KEY, *arguments)


def _picos(random: random.Random) -> int:
    return random.choice((0, 1, LIMB - 1, LIMB, random.randrange(LIMB), random.randrange(LIMB * 10**12)))


def test_windows_have_the_same_names(client: redis.Redis) -> None:
    times = [day * DAY_MS + offset for day in range(0, 60_000, 97) for offset in (0, DAY_MS - 1)]
    body = "local names = {} for i = 1, #ARGV do names[i] = {window_names(tonumber(ARGV[i]))} end return names"
    names = [pair for at in range(0, len(times), 500) for pair in _run(client, body, *times[at : at + 500])]
    assert names == [[window_name(unit, at).encode() for unit in (Unit.DAY, Unit.MONTH)] for at in times]


def test_amounts_add_subtract_and_compare(client: redis.Redis) -> None:
    body = """
    local one, one_picos = read_amount(ARGV[1])
    local other, other_picos = read_amount(ARGV[2])
    return {
      pack(AMOUNT, add_amount(one, one_picos, other, other_picos)),
      pack(AMOUNT, subtract_amount(one, one_picos, other, other_picos)),
      is_at_least(one, one_picos, other, other_picos) and 1 or 0,
    }"""
    source = random.Random(1)
    for _ in range(500):
        one = _picos(source)
        other = source.choice((one, _picos(source)))
        total, rest, is_at_least = _run(client, body, pack_amount(one), pack_amount(other))
        assert unpack_amount(total) == one + other
        assert unpack_amount(rest) == max(0, one - other)
        assert is_at_least == (one >= other)


def test_exact_amounts_add(client: redis.Redis) -> None:
    body = """
    local whole, picos, last = read_spent(ARGV[1])
    return pack(SPENT, add_spent(whole, picos, last, read_spent(ARGV[2])))"""
    source = random.Random(2)
    for _ in range(500):
        one = _picos(source) * 10**10 + source.choice((0, 10**10 - 1, source.randrange(10**10)))
        other = _picos(source) * 10**10 + source.choice((0, 10**10 - 1, source.randrange(10**10)))
        assert unpack_spent(_run(client, body, pack_spent(one), pack_spent(other))) == one + other


def test_a_release_lowers_its_groups_and_deletes_the_reservation(client: redis.Redis) -> None:
    client.delete(_KEY)
    body = """
    for i = 1, #ARGV do
      local reservation = redis.call('HGET', key, ARGV[i])
      if reservation then release(ARGV[i], reservation) end
    end
    save()"""
    both = pack_reservation(Reserved(LIMB + 5, "w" * 16, ("team", "root")))
    one = pack_reservation(Reserved(7, "w" * 16, ("root",)))
    client.hset(_KEY, mapping={"p1": both, "p2": one, "p3": b"", "rteam": pack_amount(LIMB + 5)})
    client.hset(_KEY, "rroot", pack_amount(LIMB + 20))
    _run(client, body, "p1", "p2", "p3", "p4")
    assert client.hgetall(_KEY) == {b"rteam": pack_amount(0), b"rroot": pack_amount(8)}


def test_many_reservations_are_released_in_one_call(client: redis.Redis) -> None:
    client.delete(_KEY)
    body = """
    local all = redis.call('HGETALL', key)
    for i = 1, #all, 2 do
      if all[i]:sub(1, 1) == 'p' then release(all[i], all[i + 1]) end
    end
    save()"""
    groups = [f"g{number}" for number in range(9_000)]
    client.hset(_KEY, mapping={f"p{id}": pack_reservation(Reserved(3, "w" * 16, (id, "root"))) for id in groups})
    client.hset(_KEY, "rroot", pack_amount(3 * len(groups) + 1))
    _run(client, body)
    assert client.hget(_KEY, "rroot") == pack_amount(1)
    assert client.hlen(_KEY) == len(groups) + 1
