"""deploy/compose.yaml agrees with the product and with its neighbours' files: settings, flags, ports, names, times."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from control.command import main as control
from control.settings import DEFAULT_PORT
from control.settings import Settings as ControlSettings
from proxy.command import main as proxy
from proxy.settings import settings_from
from runtime.setting_names import NAMES
from tests.deploy.without_docker.compose import services

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
HAPROXY = (DEPLOY / "haproxy/haproxy.cfg").read_text()
SECRETS = {
    "POSTGRES_PASSWORD": "p" * 48,
    "REDIS_PASSWORD": "r" * 48,
    "TOLLGATE_INTERNAL_TOKEN": "t" * 64,
    "TOLLGATE_METRICS_TOKEN": "m" * 64,
    "TOLLGATE_SECRET_KEY": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
    "GRAFANA_PASSWORD": "g" * 24,
}
PLANES = sorted(name for name in SERVICES if re.fullmatch(r"(control|proxy)-\d", name))


FILLED_IN = {service.name: service for service in services((DEPLOY / "compose.yaml").read_text(), SECRETS)}


def environment(service: str) -> dict[str, str]:
    return FILLED_IN[service].environment


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


@pytest.mark.parametrize("service", PLANES)
def test_planes_start_with_these_settings_and_flags(service: str) -> None:
    values = environment(service)
    assert values.keys() <= NAMES
    plane, *flags = SERVICES[service]["command"]
    if plane == "control":
        assert control.make_context("control", list(flags)).params["host"] == "0.0.0.0"
        settings = ControlSettings.from_environ(values)
        assert "@postgres/" in settings.database_url
        assert "@redis:" in str(settings.redis_url)
        drain_s = settings.drain_timeout_s
    else:
        with proxy.make_context("proxy", list(flags)) as context:
            assert context.params["host"] == context.params["admin_host"] == "0.0.0.0"
        drain_s = settings_from(values).drain_timeout_s
    assert seconds(SERVICES[service]["stop_grace_period"]) > drain_s


def test_both_planes_share_what_they_must() -> None:
    shared = ("TOLLGATE_INTERNAL_TOKEN", "TOLLGATE_SECRET_KEY", "TOLLGATE_REDIS_URL", "TOLLGATE_EGRESS_ALLOW")
    for name in (*shared, "TOLLGATE_METRICS_TOKEN", "TOLLGATE_PLATFORM_HOSTS"):
        assert len({environment(service)[name] for service in PLANES}) == 1


def test_secrets_come_from_outside_and_new_secrets_makes_each() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    script = (DEPLOY / "new-secrets").read_text()
    required = set(re.findall(r"\$\{(\w+):\?", text))
    assert required == SECRETS.keys() == set(re.findall(r'echo "(\w+)=', script))
    ignored = (DEPLOY.parent / ".gitignore").read_text() + (DEPLOY.parent / ".dockerignore").read_text()
    assert ignored.count("deploy/.env\n") == ignored.count("deploy/metrics.token\n") == 2


def test_our_containers_write_to_their_volumes_alone() -> None:
    assert len(PLANES) == 4
    for service in PLANES:
        assert SERVICES[service]["read_only"]
        assert SERVICES[service]["cap_drop"] == ["ALL"]
    volumes = [SERVICES[service].get("volumes") for service in PLANES if service.startswith("proxy")]
    assert volumes == [["proxy-1:/data"], ["proxy-2:/data"]]


def test_balancer_knows_every_plane_and_its_ports() -> None:
    servers = dict(re.findall(r"^  server ([\w-]+) ([\w-]+:\d+)$", HAPROXY, re.MULTILINE))
    ports = {"control": DEFAULT_PORT, "proxy": 8080}
    assert servers == {name: f"{name}:{ports[name.partition('-')[0]]}" for name in PLANES}
    (internal,) = {environment(name)["TOLLGATE_CONTROL_URL"] for name in PLANES if name.startswith("proxy")}
    assert f'}}:{internal.rpartition(":")[2]}"' in HAPROXY
    assert internal.startswith("http://haproxy:")
    assert not [port for port in SERVICES["haproxy"]["ports"] if internal.rpartition(":")[2] in port]


def test_control_reaches_the_proxies_by_the_balancer() -> None:
    (port,) = re.findall(r'frontend calls\n  bind "\S+:(\d+)"', HAPROXY)
    urls = {environment(name)["TOLLGATE_PROXY_URL"] for name in PLANES if name.startswith("control")}
    assert urls == {f"http://haproxy:{port}"}


def test_balancer_stops_after_the_proxies_have_drained() -> None:
    drain_s = seconds(environment("proxy-1")["TOLLGATE_DRAIN_TIMEOUT_S"])
    (hard_stop,) = re.findall(r"hard-stop-after (\w+)", HAPROXY)
    assert drain_s < seconds(hard_stop) < seconds(SERVICES["haproxy"]["stop_grace_period"])


def test_prometheus_scrapes_every_plane() -> None:
    jobs = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())["scrape_configs"]
    targets = [target for job in jobs for one in job["static_configs"] for target in one["targets"]]
    assert sorted(target.partition(":")[0] for target in targets) == PLANES


def test_mounted_files_exist() -> None:
    made_by_new_secrets = {"./metrics.token", "./grafana/dashboards"}
    for service in SERVICES.values():
        sources = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        for source in {one for one in sources if one.startswith(".")} - made_by_new_secrets:
            assert (DEPLOY / source).exists(), source
        assert {one for one in sources if not one.startswith(".")} <= COMPOSE["volumes"].keys()
