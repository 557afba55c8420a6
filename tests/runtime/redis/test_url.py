"""The forms of TOLLGATE_REDIS_URL, and what is wrong with the others."""

import pytest

from runtime.redis.url import RedisAddress, RedisUrl, RedisUrlError, TlsOptions, Topology

PASSWORD = "p%ss:w@rd/1"
IN_URL = "p%25ss:w%40rd%2F1"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("unix:///run/redis.sock?db=2", RedisAddress(path="/run/redis.sock", db=2)),
        ("redis://cache", RedisAddress(host="cache")),
        ("redis://cache:7000/3", RedisAddress(host="cache", port=7000, db=3)),
        ("redis://cache?db=4", RedisAddress(host="cache", db=4)),
        ("redis://[::1]:7000", RedisAddress(host="::1", port=7000)),
        (f"redis://limiter:{IN_URL}@cache", RedisAddress(host="cache", username="limiter", password=PASSWORD)),
        (f"redis://:{IN_URL}@cache", RedisAddress(host="cache", password=PASSWORD)),
        ("rediss://cache?ssl_ca_certs=/ca.pem", RedisAddress(host="cache", tls=TlsOptions(ca_file="/ca.pem"))),
        ("rediss://cache?ssl_cert_reqs=none", RedisAddress(host="cache", tls=TlsOptions(verifies=False))),
    ],
)
def test_one_server(url: str, address: RedisAddress) -> None:
    assert RedisUrl.parse(url) == RedisUrl(Topology.SERVER, (address,), address)


@pytest.mark.parametrize("url", ["redis://", "redis://:7000", "redis://user:secret@:7000/2"])
def test_one_server_without_a_host_is_on_this_machine(url: str) -> None:
    assert RedisUrl.parse(url).login.host == "localhost"


def test_a_cluster_has_several_hosts_and_one_login() -> None:
    url = RedisUrl.parse("rediss+cluster://limiter:secret@one:7000,two,[::1]:7002?ssl_check_hostname=false")
    login = RedisAddress(username="limiter", password="secret", tls=TlsOptions(checks_host_name=False))
    assert url.topology is Topology.CLUSTER
    assert url.servers == (login.at("one", 7000), login.at("two", 6379), login.at("::1", 7002))
    assert url.login.at("one", 7000) == url.servers[0]


def test_sentinels_have_a_login_of_their_own() -> None:
    url = RedisUrl.parse(
        "redis+sentinel://limiter:secret@one,two:5000/gateway/3?sentinel_username=watch&sentinel_password=other"
    )
    there = RedisAddress(username="watch", password="other")
    assert (url.topology, url.service) == (Topology.SENTINEL, "gateway")
    assert url.servers == (there.at("one", 26379), there.at("two", 5000))
    assert url.login == RedisAddress(username="limiter", password="secret", db=3)


def test_a_login_selects_its_database_last() -> None:
    assert RedisAddress(username="limiter", password="x", db=2).handshake() == [
        ("AUTH", "limiter", "x"),
        ("SELECT", "2"),
    ]
    assert RedisAddress().handshake() == []


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("http://host", "schemes"),
        ("nonsense", "schemes"),
        ("redis://host:port", "port"),
        ("redis://host:70000", "port"),
        ("redis://host/x", "database"),
        ("unix:///s?db=x", "database"),
        ("redis://one,two", "redis+cluster"),
        ("redis+cluster://one,two/1", "databases"),
        ("redis+cluster://one:x", "port"),
        ("redis+sentinel://one,two", "service"),
        ("redis://[::1", "brackets"),
        ("redis+cluster://user:secret@one,[::1", "brackets"),
        ("redis:////[secret", "database"),
        ("//user:secret@[x", "schemes"),
        ("redis+cluster://[::1]:x", "port"),
        *(
            (f"{tls}+{scheme}://{login}{hosts}{path}", "Redis host name is missing")
            for tls in ("redis", "rediss")
            for scheme, path in (
                ("cluster", ""),
                ("cluster", "/0"),
                ("sentinel", "/gateway"),
                ("sentinel", "/gateway/1"),
            )
            for login in ("", "user:secret@")
            for hosts in ("", ":7000", "one,", ",one", "one,,two", "one:7000, ,two:7000", "one,:7000", "one:1,two:2,")
        ),
    ],
)
def test_a_bad_url_is_refused_with_the_cause_and_not_repeated(url: str, cause: str) -> None:
    with pytest.raises(RedisUrlError, match=cause.replace("+", r"\+")) as raised:
        RedisUrl.parse(url)
    assert url not in str(raised.value)


def test_no_repr_contains_the_password() -> None:
    assert PASSWORD not in repr(RedisUrl.parse(f"redis+sentinel://user:{IN_URL}@host/a?sentinel_password={IN_URL}"))
