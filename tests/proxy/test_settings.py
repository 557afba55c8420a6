"""Settings are read from the environment once; errors name the setting and never its value.

See docs/reference/settings.md.
"""

import base64
from pathlib import Path

import pytest

from policy.limits.tiers import DEFAULT_TIERS, Tier
from proxy.callers.address_ranges import AddressRanges
from proxy.capacity.worker_capacity import CapacityLimits
from proxy.settings import ReplicaSettings, replica_settings, settings_from
from runtime.environment import SettingsError

KEY = base64.b64encode(b"k" * 32).decode()
LEAST = {
    "TOLLGATE_REDIS_URL": "redis://localhost",
    "TOLLGATE_INTERNAL_TOKEN": "a-secret-token-of-the-tests",
    "TOLLGATE_SECRET_KEY": KEY,
}


def test_defaults_are_the_documented_ones() -> None:
    settings = settings_from(LEAST)
    assert (settings.refresh_interval_s, settings.drain_timeout_s, settings.connect_timeout_s) == (60, 25, 5)
    assert (settings.request_timeout_s, settings.parking_timeout_s, settings.stream_idle_timeout_s) == (1200, 1200, 300)
    assert (settings.max_body_bytes, settings.async_requests.max_body_bytes) == (100_000_000, 262_144)
    assert settings.limits_on_redis_loss == "closed"
    assert settings.metrics_max_entities == 10_000
    assert settings.capacity == CapacityLimits(10_000, 5_000, 1 << 30, 0.75)
    assert settings.journal_dir == Path(".tollgate/journal")
    assert settings.replica_path == Path(".tollgate/replica.db")
    assert settings.secret_keys == (b"k" * 32,)


def test_paths_override_the_data_directory() -> None:
    settings = settings_from(LEAST | {"TOLLGATE_DATA": "/d", "TOLLGATE_REPLICA_PATH": "/r/x.db"})
    assert settings.journal_dir == Path("/d/journal")
    assert settings.replica_path == Path("/r/x.db")


def test_journal_is_written_in_memory_first_unless_that_is_off() -> None:
    assert settings_from(LEAST).journal_memory_dir == Path("/dev/shm")
    assert settings_from(LEAST | {"TOLLGATE_JOURNAL_MEMORY_DIR": "off"}).journal_memory_dir is None
    with pytest.raises(SettingsError, match=r"TOLLGATE_JOURNAL_MEMORY_DIR.*absolute"):
        settings_from(LEAST | {"TOLLGATE_JOURNAL_MEMORY_DIR": "memory"})


def test_empty_value_means_unset() -> None:
    assert settings_from(LEAST | {"TOLLGATE_DRAIN_TIMEOUT_S": ""}).drain_timeout_s == 25


def test_ready_grace_is_within_the_drain_timeout() -> None:
    assert settings_from(LEAST).ready_grace_s == 7
    assert settings_from(LEAST | {"TOLLGATE_DRAIN_TIMEOUT_S": "4"}).ready_grace_s == 2, "the default leaves half"
    assert settings_from(LEAST | {"TOLLGATE_READY_GRACE_S": "0"}).ready_grace_s == 0
    assert settings_from(LEAST | {"TOLLGATE_READY_GRACE_S": "20"}).ready_grace_s == 20
    for value in ("25", "-1", "nan", "soon"):
        with pytest.raises(SettingsError, match="TOLLGATE_READY_GRACE_S: expected a number of seconds, 0 or more"):
            settings_from(LEAST | {"TOLLGATE_READY_GRACE_S": value})


def test_tiers_are_added_to_the_defaults() -> None:
    tiers = settings_from(LEAST | {"TOLLGATE_MODEL_API_TIERS": "acme=500/2000000, pro=1/2"}).tiers
    assert tiers["acme"] == Tier(500, 2_000_000)
    assert tiers["pro"] == Tier(1, 2)
    assert tiers["basic"] == settings_from(LEAST).tiers["basic"] == Tier(15, 100_000)


def test_models_have_no_hosts_unless_a_suffix_is_set() -> None:
    assert settings_from(LEAST).model_host_suffix == ""
    assert settings_from(LEAST | {"TOLLGATE_MODEL_HOST_SUFFIX": "Models.Test"}).model_host_suffix == "models.test"


def test_no_peer_is_trusted_unless_it_is_named() -> None:
    assert not settings_from(LEAST).trusted_proxies
    trusted = settings_from(LEAST | {"TOLLGATE_TRUSTED_PROXIES": "10.0.0.0/8, 2001:db8::1"}).trusted_proxies
    assert trusted == AddressRanges(["10.0.0.0/8", "2001:db8::1/128"])


def test_max_held_bytes_must_fit_the_largest_body() -> None:
    settings = settings_from(LEAST | {"TOLLGATE_MAX_BODY_BYTES": "1000", "TOLLGATE_MAX_HELD_BYTES": "1000"})
    assert settings.capacity.max_held_bytes == 1000
    with pytest.raises(SettingsError, match="TOLLGATE_MAX_HELD_BYTES: expected at least TOLLGATE_MAX_BODY_BYTES"):
        settings_from(LEAST | {"TOLLGATE_MAX_HELD_BYTES": "1000"})


def test_trailing_slash_of_a_base_url_is_removed() -> None:
    assert settings_from(LEAST | {"TOLLGATE_CONTROL_URL": "http://c:8081/"}).control_url == "http://c:8081"


@pytest.mark.parametrize("name", LEAST)
def test_missing_required_setting_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is not set"):
        settings_from({key: value for key, value in LEAST.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOLLGATE_DRAIN_TIMEOUT_S", "soon"),
        ("TOLLGATE_DRAIN_TIMEOUT_S", "-1"),
        ("TOLLGATE_DRAIN_TIMEOUT_S", "nan"),
        ("TOLLGATE_DRAIN_TIMEOUT_S", "inf"),
        ("TOLLGATE_MAX_BODY_BYTES", "0"),
        ("TOLLGATE_MAX_BODY_BYTES", "1.5"),
        ("TOLLGATE_WORKSPACE_SHARE", "1"),
        ("TOLLGATE_REDIS_TIMEOUT_S", "0.009"),
        ("TOLLGATE_REDIS_TIMEOUT_S", "1.1"),
        ("TOLLGATE_REDIS_TIMEOUT_S", "nan"),
        ("TOLLGATE_WORKSPACE_SHARE", "nan"),
        ("TOLLGATE_MAX_IN_FLIGHT", "0"),
        ("TOLLGATE_REQUEST_MAX_PER_S", "1"),
        ("TOLLGATE_REQUEST_MAX_PER_S", "10001"),
        ("TOLLGATE_REQUEST_MAX_PER_S", "many"),
        ("TOLLGATE_CONTROL_URL", "ftp://control"),
        ("TOLLGATE_CONTROL_URL", "http://user:hunter2@control"),
        ("TOLLGATE_CONTROL_URL", "http://:hunter2@control"),
        ("TOLLGATE_REDIS_URL", "http://hunter2"),
        ("TOLLGATE_LIMITS_ON_REDIS_LOSS", "unlimited"),
        ("TOLLGATE_SECRET_KEY", "hunter2"),
        ("TOLLGATE_INTERNAL_TOKEN", "hunter2"),
        ("TOLLGATE_EGRESS_ALLOW", "10.0.0.0/8, nonsense"),
        ("TOLLGATE_MODEL_API_TIERS", "acme=500"),
        ("TOLLGATE_MODEL_API_TIERS", "acme=0/1"),
        ("TOLLGATE_MODEL_HOST_SUFFIX", "https://models.example.com"),
        ("TOLLGATE_TRUSTED_PROXIES", "balancer.internal"),
        ("TOLLGATE_TRUSTED_PROXIES", "10.0.0.0/8, 0.0.0.0/0"),
    ],
)
def test_invalid_setting_is_named_without_its_value(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_from(LEAST | {name: value})
    assert name in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_secrets_are_not_in_the_repr() -> None:
    text = repr(settings_from(LEAST | {"TOLLGATE_REDIS_URL": "redis://:pw@h"}))
    assert "a-secret-token" not in text
    assert "pw@" not in text
    assert "kkkk" not in text


def test_replica_settings_need_no_other_setting() -> None:
    assert replica_settings({}) == ReplicaSettings(Path(".tollgate/replica.db"), (), DEFAULT_TIERS)


def test_our_own_hosts_are_no_receivers() -> None:
    hosts = {
        "TOLLGATE_PLATFORM_HOSTS": "Api.Example.com, ,other.example.com",
        "TOLLGATE_MODEL_API_BASE_URL": "https://models.example.com/v1",
        "TOLLGATE_EGRESS_ALLOW": "10.0.0.0/8",
    }
    egress = settings_from(LEAST | hosts).egress
    assert egress.platform_hosts == {"api.example.com", "other.example.com", "models.example.com"}
    assert [str(network) for network in egress.networks] == ["10.0.0.0/8"]
    assert settings_from(LEAST).egress.platform_hosts == frozenset()
    with pytest.raises(SettingsError, match="TOLLGATE_EGRESS_ALLOW"):
        settings_from(LEAST | {"TOLLGATE_EGRESS_ALLOW": "nonsense"})
