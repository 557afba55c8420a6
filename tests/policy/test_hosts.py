"""Tables of the URLs and addresses that must be refused, and of those that must be accepted."""

from collections.abc import Callable
from ipaddress import ip_address

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policy.endpoints import EndpointRuleError
from policy.hosts import (
    EgressAllowError,
    EgressRules,
    HostRuleError,
    Reach,
    check_addresses,
    check_base_url,
    check_replica_url,
    check_wake_url,
    is_public,
    plain_address,
    refusal,
)

NOT_HTTPS = [
    "",
    "api.example.com",
    "http://api.example.com/v1",
    "HTTP://api.example.com/v1",
    "ftp://api.example.com/",
    "file:///etc/passwd",
    "gopher://api.example.com/",
    "javascript:alert(1)",
    "data:text/plain,x",
    "//api.example.com/v1",
    "https:api.example.com",
    "https:/api.example.com/v1",
    "https:///api.example.com/v1",
    "https://",
    "https:///",
    "unix:///var/run/docker.sock",
    "ws://api.example.com/",
    "jar:https://api.example.com!/",
]
CREDENTIALS = [
    "https://user:password@api.example.com/v1",
    "https://user@api.example.com/v1",
    "https://@api.example.com/v1",
    "https://:@api.example.com/v1",
    "https://:password@api.example.com/v1",
    "https://api.openai.com@127.0.0.1/v1",
    "https://api.openai.com:443@127.0.0.1/v1",
    "https://api.openai.com%40127.0.0.1/v1",
    "https://127.0.0.1@api.example.com/v1",
    "https://api.example.com#@127.0.0.1/v1",
    "https://api.example.com?@127.0.0.1/v1",
    "https://a@b@api.example.com/v1",
]
PORTS = [
    "https://api.example.com:443/v1",
    "https://api.example.com:8443/v1",
    "https://api.example.com:/v1",
    "https://api.example.com:",
    "https://api.example.com:0/v1",
    "https://api.example.com:99999/v1",
    "https://api.example.com:-1/v1",
    "https://api.example.com:abc/v1",
    "https://8.8.8.8:443/v1",
    "https://[2606:4700:4700::1111]:443/v1",
    "https://[2606:4700:4700::1111]:/v1",
    "https://api.example.com:80:443/v1",
]
IPV4 = [
    "https://127.0.0.1/v1",
    "https://127.255.255.254/",
    "https://0.0.0.0/v1",
    "https://0.1.2.3/v1",
    "https://10.0.0.1/v1",
    "https://10.255.255.255/",
    "https://172.16.0.1/v1",
    "https://172.31.255.255/v1",
    "https://192.168.1.1/v1",
    "https://100.64.0.1/v1",
    "https://100.127.255.255/",
    "https://169.254.0.1/v1",
    "https://169.254.169.254/latest/meta-data",
    "https://169.254.170.2/v2/credentials",
    "https://168.63.129.16/metadata",
    "https://100.100.100.200/latest",
    "https://192.0.0.192/opc/v1",
    "https://192.0.0.1/",
    "https://192.0.2.1/",
    "https://192.88.99.1/",
    "https://198.18.0.1/",
    "https://198.19.255.255/",
    "https://198.51.100.7/",
    "https://203.0.113.7/",
    "https://224.0.0.1/",
    "https://239.255.255.255/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
]
IPV4_NOTATIONS = [
    "https://2130706433/",
    "https://3232235777/",
    "https://2852039166/latest/meta-data",
    "https://134744072/",
    "https://017700000001/",
    "https://0177.0.0.1/",
    "https://0177.0.0.01/",
    "https://0177.1/",
    "https://010.0.0.1/",
    "https://127.0.0.01/",
    "https://127.00.0.1/",
    "https://0x7f000001/",
    "https://0x7F000001/",
    "https://0X7F000001/",
    "https://0x7f.0.0.1/",
    "https://0x7f.0x0.0x0.0x1/",
    "https://0x7f.1/",
    "https://127.0.0.0x1/",
    "https://0xa9fea9fe/",
    "https://0xa9.0xfe.0xa9.0xfe/",
    "https://0251.0376.0251.0376/",
    "https://0x/",
    "https://example.0x/",
    "https://127.1/",
    "https://127.0.1/",
    "https://10.1/",
    "https://0/",
    "https://1/",
    "https://169.254.43518/",
    "https://192.168.257/",
    "https://256.256.256.256/",
    "https://127.0.0.256/",
    "https://1.2.3.4.5/",
    "https://1.2.3/",
    "https://8.8.2056/",
    "https://api.example.1/",
    "https://00000000000000000000127.0.0.1/",
    "https://4294967297/",
    "https://127.0.0.1./",
    "https://0x7f000001./",
    "https://2130706433./",
]
IPV6 = [
    "https://[::]/v1",
    "https://[::1]/v1",
    "https://[0:0:0:0:0:0:0:1]/v1",
    "https://[0000:0000:0000:0000:0000:0000:0000:0001]/v1",
    "https://[::ffff:127.0.0.1]/v1",
    "https://[::FFFF:7F00:1]/v1",
    "https://[::ffff:8.8.8.8]/v1",
    "https://[0:0:0:0:0:ffff:10.0.0.1]/v1",
    "https://[::127.0.0.1]/v1",
    "https://[::7f00:1]/v1",
    "https://[::a9fe:a9fe]/v1",
    "https://[::ffff:0:127.0.0.1]/v1",
    "https://[64:ff9b::127.0.0.1]/v1",
    "https://[64:ff9b::7f00:1]/v1",
    "https://[64:ff9b::a9fe:a9fe]/v1",
    "https://[64:ff9b::8.8.8.8]/v1",
    "https://[64:ff9b:1::a9fe:a9fe]/v1",
    "https://[64:ff9b:1:ffff::10.0.0.1]/v1",
    "https://[2002:7f00:1::]/v1",
    "https://[2002:a9fe:a9fe::1]/v1",
    "https://[2002:808:808::1]/v1",
    "https://[2001:0:7f00:1::]/v1",
    "https://[2001:0:4136:e378:8000:63bf:80ff:fffe]/v1",
    "https://[2001::1]/v1",
    "https://[2001:2::1]/v1",
    "https://[2001:10::1]/v1",
    "https://[2001:db8::1]/v1",
    "https://[3fff::1]/v1",
    "https://[5f00::1]/v1",
    "https://[100::1]/v1",
    "https://[fc00::1]/v1",
    "https://[fd00::1]/v1",
    "https://[fd00:ec2::254]/latest/meta-data",
    "https://[fd20:ce::254]/",
    "https://[fe80::1]/v1",
    "https://[fe80::a9fe:a9fe]/",
    "https://[fe80::1%25eth0]/v1",
    "https://[fe80::1%eth0]/v1",
    "https://[2606:4700:4700::1111%25eth0]/v1",
    "https://[fec0::1]/v1",
    "https://[ff02::1]/v1",
    "https://[ff0e::1]/v1",
    "https://[4000::1]/v1",
    "https://[2606:4700::5efe:10.0.0.1]/v1",
    "https://[2606:4700::200:5efe:a9fe:a9fe]/v1",
    "https://[2606:4700:4700::1111/v1",
    "https://2606:4700:4700::1111]/v1",
    "https://2606:4700:4700::1111/v1",
    "https://[[2606:4700:4700::1111]]/v1",
    "https://[2606:4700:4700::1111]evil/v1",
    "https://[2606:4700:4700::1111].example.com/v1",
    "https://[]/v1",
    "https://[8.8.8.8]/v1",
    "https://[api.example.com]/v1",
    "https://[v1.fe80::a+en1]/v1",
]
NAMES = [
    "https://localhost/v1",
    "https://LOCALHOST/v1",
    "https://LocalHost/v1",
    "https://localhost./v1",
    "https://localhost../v1",
    "https://foo.localhost/v1",
    "https://localhost.localdomain/v1",
    "https://localhost6/v1",
    "https://ip6-localhost/v1",
    "https://printer.local/v1",
    "https://printer.LOCAL/v1",
    "https://printer.local./v1",
    "https://vault.internal/v1",
    "https://a.b.internal/v1",
    "https://internal/v1",
    "https://local/v1",
    "https://intranet/v1",
    "https://api.intranet/v1",
    "https://api.corp/v1",
    "https://api.home/v1",
    "https://router.lan/v1",
    "https://router.home.arpa/v1",
    "https://1.0.0.127.in-addr.arpa/v1",
    "https://kubernetes/v1",
    "https://kubernetes.default.svc/v1",
    "https://kubernetes.default.svc.cluster.local/v1",
    "https://redis.service.consul/v1",
    "https://hidden.onion/v1",
    "https://metadata.google.internal/computeMetadata/v1",
    "https://metadata.google.internal./computeMetadata/v1",
    "https://metadata/computeMetadata/v1",
    "https://metadata.goog/computeMetadata/v1",
    "https://metadata.azure.com/",
    "https://metadata.tencentyun.com/",
    "https://instance-data/latest",
    "https://instance-data.ec2.internal/latest",
    "https://host.docker.internal/v1",
    "https://127.0.0.1.nip.io/v1",
    "https://app-127-0-0-1.sslip.io/v1",
    "https://localtest.me/v1",
    "https://a.lvh.me/v1",
    "https://7f000001.c0a80001.rbndr.us/v1",
    "https://api.example.com./v1",
    "https://.api.example.com/v1",
    "https://api..example.com/v1",
    "https://./v1",
    "https://-api.example.com/v1",
    "https://api-.example.com/v1",
    "https://api_1.example.com/v1",
    "https://*.example.com/v1",
    "https://api,example.com/v1",
    f"https://{'a' * 64}.example.com/v1",
    f"https://{'a.' * 130}com/v1",
    "https://platform.example.net/v1",
    "https://api.platform.example.net/v1",
    "https://API.Platform.Example.NET/v1",
]
CHARACTERS = [
    "https://①②⑦.⓪.⓪.①/",
    "https://１２７.０.０.１/",
    "https://127。0。0。1/",
    "https://127．0．0．1/",
    "https://127｡0｡0｡1/",
    "https://ｌｏｃａｌｈｏｓｔ/",
    "https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/",
    "https://lo\N{SOFT HYPHEN}calhost/",
    "https://local\N{ZERO WIDTH SPACE}host/",
    "https://ap\N{CYRILLIC SMALL LETTER I}.openai.com/",
    "https://api.openai.com\N{FRACTION SLASH}.example.com/",
    "https://api.example.com\N{FULLWIDTH COLON}443/",
    "https://api.example.com\N{CARE OF}evil/",
    "https://bücher.example/",
    "https://api.example.com\\@127.0.0.1/v1",
    "https:\\\\127.0.0.1\\v1",
    "https://127.0.0.1\\.example.com/v1",
    "https://api.example.com\\v1",
    " https://api.example.com/v1",
    "https://api.example.com/v1 ",
    "https://api.example.com /v1",
    "https:// api.example.com/v1",
    "\thttps://api.example.com/v1",
    "https://api.exam\tple.com/v1",
    "https://api.example.com\n/v1",
    "https://api.example.com\r\nx: y/v1",
    "https://api.example.com/v1\r\nx: y",
    "https://api.example.com\0.evil/v1",
    "https://api.example.com/v1\0",
    "https://api.example.com\x7f/v1",
    "https://api.example.com\x1b[0m/v1",
    "https://127.0.0.1%2f.example.com/v1",
    "https://%31%32%37.0.0.1/",
    "https://loc%61lhost/",
    "https://api.example.com%00.evil/",
    "https://api.example.com%2523/",
    "https://api.example.com;evil/",
    "https://api.example.com&evil/",
    "https://<api.example.com>/",
    'https://api.example.com"/',
    "https://{api}.example.com/",
    "https://api.example.com|evil/",
    "https://api.example.com^evil/",
    "https://$(id).example.com/",
]
PATHS = [
    "https://api.example.com/v1?key=secret",
    "https://api.example.com?x=1",
    "https://api.example.com/v1?",
    "https://api.example.com/v1#part",
    "https://api.example.com#",
    "https://api.example.com/v1/../admin",
    "https://api.example.com/..",
    "https://api.example.com/./v1",
    "https://api.example.com/%2e%2e/admin",
    "https://api.example.com/.%2E/admin",
    "https://api.example.com//v1",
    "https://api.example.com/v1//",
    "https://api.example.com/v%1",
    "https://api.example.com/v%zz",
    "https://api.example.com/<v1>",
    "https://api.example.com/v1[0]",
    "https://api.example.com/" + "v" * 2048,
]
HOSTILE = [*NOT_HTTPS, *CREDENTIALS, *PORTS, *IPV4, *IPV4_NOTATIONS, *IPV6, *NAMES, *CHARACTERS, *PATHS]

GOOD = [
    ("https://api.openai.com", "api.openai.com", ""),
    ("https://api.openai.com/", "api.openai.com", ""),
    ("https://api.openai.com/v1", "api.openai.com", "/v1"),
    ("https://api.openai.com/v1/", "api.openai.com", "/v1"),
    ("HTTPS://API.OpenAI.com/v1", "api.openai.com", "/v1"),
    ("https://api.example.com/v1", "api.example.com", "/v1"),
    ("https://a.io", "a.io", ""),
    ("https://x.ai/v1", "x.ai", "/v1"),
    ("https://api.mistral.ai/v1", "api.mistral.ai", "/v1"),
    ("https://openrouter.ai/api/v1", "openrouter.ai", "/api/v1"),
    ("https://api.groq.com/openai/v1", "api.groq.com", "/openai/v1"),
    ("https://my-resource.openai.azure.com/openai/deployments/gpt", None, "/openai/deployments/gpt"),
    ("https://generativelanguage.googleapis.com/v1beta/openai", None, "/v1beta/openai"),
    ("https://api.eu-west-1.example.co.uk/v1", "api.eu-west-1.example.co.uk", "/v1"),
    ("https://1password.com/v1", "1password.com", "/v1"),
    ("https://0x.org/v1", "0x.org", "/v1"),
    ("https://127.0.0.1.example.com/v1", "127.0.0.1.example.com", "/v1"),
    ("https://localhost.example.com/v1", "localhost.example.com", "/v1"),
    ("https://internal.example.com/v1", "internal.example.com", "/v1"),
    ("https://local.example.com/v1", "local.example.com", "/v1"),
    ("https://metadata.example.com/v1", "metadata.example.com", "/v1"),
    ("https://mylocal.company/v1", "mylocal.company", "/v1"),
    ("https://notplatform.example.net/v1", "notplatform.example.net", "/v1"),
    ("https://xn--bcher-kva.example/v1", "xn--bcher-kva.example", "/v1"),
    ("https://api.xn--fiqs8s/v1", "api.xn--fiqs8s", "/v1"),
    ("https://no-such-host.invalid/v1", "no-such-host.invalid", "/v1"),
    ("https://model.test/v1", "model.test", "/v1"),
    (f"https://{'a' * 63}.example.com/v1", f"{'a' * 63}.example.com", "/v1"),
    ("https://8.8.8.8/v1", "8.8.8.8", "/v1"),
    ("https://1.1.1.1", "1.1.1.1", ""),
    ("https://172.15.255.255/v1", "172.15.255.255", "/v1"),
    ("https://172.32.0.1/v1", "172.32.0.1", "/v1"),
    ("https://100.63.255.255/v1", "100.63.255.255", "/v1"),
    ("https://100.128.0.1/v1", "100.128.0.1", "/v1"),
    ("https://223.255.255.255/v1", "223.255.255.255", "/v1"),
    ("https://[2606:4700:4700::1111]/v1", "2606:4700:4700::1111", "/v1"),
    ("https://[2A00:1450:4001:0800::200E]/", "2a00:1450:4001:0800::200e", ""),
    ("https://api.example.com/v1/a-b_c.d~e/%20/f:g@h", "api.example.com", "/v1/a-b_c.d~e/%20/f:g@h"),
    ("https://api.example.com/v1.../x..y", "api.example.com", "/v1.../x..y"),
]
RULES = EgressRules.parse(
    "10.1.0.0/16, fd12:3456::/32, linked.internal=10.9.9.9:8443", platform_hosts=("Platform.example.net",)
)


def test_tables_hold_at_least_150_hostile_and_30_good_urls() -> None:
    assert len(set(HOSTILE)) == len(HOSTILE) >= 150
    assert len({url for url, _, _ in GOOD}) == len(GOOD) >= 30


@pytest.mark.parametrize("url", HOSTILE)
def test_a_hostile_base_url_is_refused(url: str) -> None:
    with pytest.raises(HostRuleError) as refused:
        check_base_url(url, RULES)
    assert refused.value.field == "base_url"
    assert isinstance(refused.value, EndpointRuleError)
    assert "secret" not in refused.value.message
    assert "password" not in refused.value.message


@pytest.mark.parametrize(("url", "host", "path"), GOOD)
def test_a_good_base_url_is_accepted(url: str, host: str | None, path: str) -> None:
    parsed = check_base_url(url, RULES)
    assert (parsed.scheme, parsed.port, parsed.path) == ("https", None, path)
    assert host is None or parsed.host == host
    assert (parsed.address is None) == bool(set(parsed.host) & set("ghijklmnopqrstuvwxyz-"))


def test_the_default_rules_allow_nothing_extra() -> None:
    for url in ("https://linked.internal/v1", "https://10.1.0.1/v1", "https://localhost/v1"):
        with pytest.raises(HostRuleError):
            check_base_url(url)


def test_a_linked_name_is_accepted_though_it_looks_internal() -> None:
    parsed = check_base_url("https://Linked.Internal/v1", RULES)
    assert parsed.host == "linked.internal"


@pytest.mark.parametrize("url", ["https://linked.internal:8443/v1", "http://linked.internal/v1", "https://10.9.9.9/"])
def test_a_link_lifts_no_other_rule(url: str) -> None:
    with pytest.raises(HostRuleError):
        check_base_url(url, RULES)


def test_a_base_url_in_a_replica_network_is_refused() -> None:
    with pytest.raises(HostRuleError):
        check_base_url("https://10.1.0.1/v1", RULES)


@given(st.text(max_size=60))
@example("https://")
def test_any_text_is_parsed_or_refused(text: str) -> None:
    """Each URL is refused, or its parsed host is ASCII and stands literally at its start."""
    for url in (text, f"https://{text}", f"https://api.example.com/{text}"):
        try:
            parsed = check_base_url(url)
        except HostRuleError:
            continue
        assert url.isascii()
        assert url.lower().startswith(f"https://{parsed.host}") or url.lower().startswith(f"https://[{parsed.host}]")


@given(st.ip_addresses(v=4), st.sampled_from(["{0}", "[::ffff:{0}]", "[::{0}]", "[64:ff9b::{0}]"]))
def test_a_private_ipv4_address_is_refused_in_every_ipv6_form(address: object, template: str) -> None:
    inner = ip_address(str(address))
    ipv6_form = ip_address(template.format(inner).strip("[]"))
    if not is_public(inner):
        assert not is_public(ipv6_form)
        assert refusal(ipv6_form, Reach.CUSTOMER, EgressRules()) is not None


# --- replicas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://10.1.0.5:8000", "10.1.0.5", 8000),
        ("https://10.1.0.5", "10.1.0.5", None),
        ("http://[fd12:3456::7]:8000/v1", "fd12:3456::7", 8000),
        ("http://8.8.8.8:80", "8.8.8.8", 80),
        ("http://vllm-0.vllm.default.svc.cluster.local:8000", "vllm-0.vllm.default.svc.cluster.local", 8000),
        ("http://vllm:8000", "vllm", 8000),
        ("https://gpu.example.com/base/", "gpu.example.com", None),
        ("http://linked.internal", "linked.internal", None),
    ],
)
def test_a_good_replica_url_is_accepted(url: str, host: str, port: int | None) -> None:
    parsed = check_replica_url(url, RULES)
    assert (parsed.host, parsed.port) == (host, port)


@pytest.mark.parametrize(
    "url",
    [
        "http://10.2.0.5:8000",
        "http://127.0.0.1:8000",
        "http://2130706433:8000",
        "http://0x0a010005:8000",
        "http://169.254.169.254/",
        "http://[::ffff:10.2.0.5]:8000",
        "http://[fd00:ec2::254]/",
        "http://metadata.google.internal/",
        "http://user:pw@10.1.0.5:8000",
        "http://10.1.0.5:0",
        "http://10.1.0.5:65536",
        "http://10.1.0.5:",
        "http://10.1.0.5:8000?x=1",
        "ftp://10.1.0.5",
        "10.1.0.5:8000",
        "http://10.1.0.5:8000/../x",
        "http://0.0.0.0:8000",
        "",
    ],
)
def test_a_hostile_replica_url_is_refused(url: str) -> None:
    with pytest.raises(HostRuleError) as refused:
        check_replica_url(url, RULES)
    assert refused.value.field == "replicas"


@pytest.mark.parametrize("url", ["http://localhost:8000", "http://vllm:8000", "http://a.internal", "http://10.1.0.5"])
def test_without_allowed_networks_internal_replicas_are_refused(url: str) -> None:
    with pytest.raises(HostRuleError):
        check_replica_url(url, EgressRules())
    assert check_replica_url("http://gpu.example.com:8000", EgressRules()).port == 8000


@pytest.mark.parametrize("rules", [RULES, EgressRules()])
@pytest.mark.parametrize(
    "url",
    [
        *("http://10.1.0.5:8000", "http://[fd12:3456::7]:8000/v1", "http://8.8.8.8:80", "http://vllm:8000/"),
        *("https://gpu.example.com/base/", "http://linked.internal", "http://10.2.0.5:8000", "http://127.0.0.1"),
        *("http://2130706433", "http://0x0a010005", "http://169.254.169.254/", "http://[::ffff:10.2.0.5]:8000"),
        *("http://metadata.google.internal/", "http://user:pw@10.1.0.5", "http://10.1.0.5:0", "http://10.1.0.5:"),
        *(
            "ftp://10.1.0.5",
            "10.1.0.5:8000",
            "http://10.1.0.5/../x",
            "http://0.0.0.0",
            "",
            "http://localhost",
            "http://",
        ),
    ],
)
def test_a_wake_url_is_accepted_where_a_replica_is_and_may_have_a_query(url: str, rules: EgressRules) -> None:
    fields = set[str]()

    def accepts(check: Callable[[str, EgressRules], object], text: str) -> bool:
        try:
            check(text, rules)
        except HostRuleError as refused:
            fields.add(refused.field)
            return False
        return True

    as_replica = accepts(check_replica_url, url)
    assert accepts(check_wake_url, url) == as_replica
    assert accepts(check_wake_url, f"{url}?token=a%20b&x=/?:@") == as_replica
    for query in ("a b", "a#b", "%zz", "\u00e4", "\n", "<", '"', "x" * 2048):
        assert not accepts(check_wake_url, f"{url}?{query}")
    assert fields <= {"replicas", "wake_url"}


# --- addresses --------------------------------------------------------------------------------------------------------

ANYWHERE = EgressRules.parse("0.0.0.0/0, ::/0")


@pytest.mark.parametrize("reach", Reach)
@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "168.63.129.16",
        "192.0.0.192",
        "100.100.100.200",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
        "fe80::a9fe:a9fe",
        "::ffff:169.254.169.254",
        "::169.254.169.254",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::169.254.169.254",
        "2002:a9fe:a9fe::1",
        "2001:0:a9fe:a9fe::1",
        "2001:0:102:304:0:0:5601:5601",
        "2606:4700::5efe:169.254.169.254",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "255.255.255.255",
        "ff02::1",
    ],
)
def test_reserved_and_metadata_addresses_are_never_dialled(address: str, reach: Reach) -> None:
    assert refusal(ip_address(address), reach, ANYWHERE)


@pytest.mark.parametrize(
    ("address", "customer", "replica", "operator"),
    [
        ("8.8.8.8", True, True, True),
        ("::ffff:8.8.8.8", True, True, True),
        ("64:ff9b::8.8.8.8", True, True, True),
        ("2606:4700:4700::1111", True, True, True),
        ("10.1.0.1", False, True, True),
        ("::ffff:10.1.0.1", False, True, True),
        ("10.2.0.1", False, False, True),
        ("127.0.0.1", False, False, True),
        ("::1", False, False, True),
        ("fd12:3456::1", False, True, True),
        ("fd12:3457::1", False, False, True),
        ("2002:808:808::1", False, False, True),
    ],
)
def test_each_reach_may_dial_only_its_networks(address: str, customer: bool, replica: bool, operator: bool) -> None:
    allowed = [refusal(ip_address(address), reach, RULES) is None for reach in (Reach.CUSTOMER, Reach.REPLICA)]
    assert allowed == [customer, replica]
    assert (refusal(ip_address(address), Reach.OPERATOR, RULES) is None) is operator


def test_one_private_address_among_public_ones_refuses_the_name() -> None:
    good = ip_address("8.8.8.8")
    bad = ip_address("10.0.0.1")
    check_addresses([good, good], Reach.CUSTOMER, RULES)
    with pytest.raises(HostRuleError, match="not public"):
        check_addresses([good, bad], Reach.CUSTOMER, RULES)


def test_an_ipv4_mapped_address_is_reduced_to_ipv4() -> None:
    assert plain_address(ip_address("::ffff:1.2.3.4")) == ip_address("1.2.3.4")
    assert plain_address(ip_address("2606:4700::1")) == ip_address("2606:4700::1")


# --- TOLLGATE_EGRESS_ALLOW --------------------------------------------------------------------------------------------


def test_networks_and_links_are_parsed_from_the_setting() -> None:
    rules = EgressRules.parse(" 10.0.0.0/8 ,127.0.0.1, A.b=1.2.3.4:5 , c=[::1]:65535,, ")
    assert [str(network) for network in rules.networks] == ["10.0.0.0/8", "127.0.0.1/32"]
    assert {name: (str(link.address), link.port) for name, link in rules.links.items()} == {
        "a.b": ("1.2.3.4", 5),
        "c": ("::1", 65535),
    }
    assert EgressRules.parse("") == EgressRules()


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1/8",
        "nonsense",
        "10.0.0.0/33",
        "a=b:1",
        "a=1.2.3.4",
        "a=1.2.3.4:",
        "a=1.2.3.4:0",
        "a=1.2.3.4:65536",
        "a=1.2.3.4:x",
        "=1.2.3.4:5",
        "1.2.3.4=1.2.3.4:5",
        "a b=1.2.3.4:5",
        "a.=1.2.3.4:5",
        "a=169.254.169.254:80",
        "a=[fd00:ec2::254]:80",
        "a=0.0.0.0:80",
    ],
)
def test_a_malformed_setting_is_refused(text: str) -> None:
    with pytest.raises(EgressAllowError):
        EgressRules.parse(text)
