"""Control's settings: defaults, and errors that name the setting but never show its value."""

import base64

import pytest

from control.settings import Settings
from policy.endpoints import PROVIDER_NAMES
from runtime.environment import SettingsError

GOOD = {
    "TOLLGATE_INTERNAL_TOKEN": "a-token-of-the-tests",
    "TOLLGATE_SECRET_KEY": base64.b64encode(b"k" * 32).decode(),
}


def test_control_defaults_are_the_documented_ones() -> None:
    settings = Settings.from_environ(GOOD)
    assert (settings.event_holdback_s, settings.event_retention_days) == (60, 92)
    webhooks = (settings.webhook_poll_interval_s, settings.webhook_timeout_s, settings.webhook_retry_for_s)
    assert webhooks == (0.5, 15, 3 * 86_400)


def test_hourly_sums_are_kept_as_long_as_their_events() -> None:
    assert Settings.from_environ(GOOD).sums_retention_days == 400
    shorter = {"TOLLGATE_USAGE_RETENTION_DAYS": "30"}
    assert Settings.from_environ({**GOOD, **shorter}).sums_retention_days == 92
    assert Settings.from_environ({**GOOD, **shorter, "TOLLGATE_EVENT_RETENTION_DAYS": "7"}).sums_retention_days == 30


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOLLGATE_EVENT_RETENTION_DAYS", "0"),
        ("TOLLGATE_EVENT_RETENTION_DAYS", "-5"),
        ("TOLLGATE_EVENT_RETENTION_DAYS", "forever"),
        ("TOLLGATE_USAGE_RETENTION_DAYS", "0"),
        ("TOLLGATE_REQUEST_RETENTION_DAYS", "0"),
        ("TOLLGATE_REQUEST_MAX_ROWS", "0"),
        ("TOLLGATE_EVENT_HOLDBACK_S", "nan"),
        ("TOLLGATE_EVENT_HOLDBACK_S", "inf"),
        ("TOLLGATE_WEBHOOK_POLL_INTERVAL_S", "0"),
        ("TOLLGATE_WEBHOOK_TIMEOUT_S", "0"),
        ("TOLLGATE_WEBHOOK_RETRY_FOR_S", "-1"),
    ],
)
def test_a_number_out_of_range_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} must be a number of at least"):
        Settings.from_environ({**GOOD, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOLLGATE_INTERNAL_TOKEN", "hunter2"),
        ("TOLLGATE_SECRET_KEY", "c2VjcmV0"),
        ("TOLLGATE_REDIS_URL", "http://hunter2"),
        ("TOLLGATE_MODEL_API_BASE_URL", "hunter2"),
        ("TOLLGATE_PROXY_URL", "http://user:hunter2@proxy:8080"),
        ("TOLLGATE_EGRESS_ALLOW", "10.0.0.0/8, nonsense"),
        ("TOLLGATE_DRAIN_TIMEOUT_S", "0"),
        ("TOLLGATE_CONTROL_PORT", "70000"),
    ],
)
def test_invalid_setting_is_named_without_its_value(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name) as caught:
        Settings.from_environ({**GOOD, name: value})
    assert value not in str(caught.value) or value == "0"


@pytest.mark.parametrize(
    ("aliases", "says"),
    [
        ("HOUSE", "ALIAS=PROVIDER"),
        ("house=PLATFORM", "A-Z"),
        ("=PLATFORM", "ALIAS=PROVIDER"),
        ("HOUSE=PLATFORM,B=C=PLATFORM", "entry 2"),
        ("HOUSE=", "must be PLATFORM or PLATFORM_MODEL_API"),
        ("HOUSE=NOBODY", "must be PLATFORM or PLATFORM_MODEL_API"),
        ("HOUSE=VENDOR_A", "must be PLATFORM or PLATFORM_MODEL_API"),
        ("HOUSE=OPENAI", "must be PLATFORM or PLATFORM_MODEL_API"),
        ("VENDOR_A=PLATFORM", "choose another name"),
        ("OPENAI=PLATFORM", "choose another name"),
        ("XAI=PLATFORM", "choose another name"),
        ("HOUSE=PLATFORM,HOUSE=PLATFORM_MODEL_API", "choose another name"),
    ],
)
def test_aliases_that_cannot_be_are_refused_with_the_remedy(aliases: str, says: str) -> None:
    with pytest.raises(SettingsError, match=f"TOLLGATE_PROVIDER_ALIASES: .*{says}"):
        Settings.from_environ({**GOOD, "TOLLGATE_PROVIDER_ALIASES": aliases})


def test_aliases_and_regions_are_read_with_blanks_and_last_commas() -> None:
    environ = {
        "TOLLGATE_PROVIDER_ALIASES": " HOUSE = PLATFORM , B=PLATFORM_MODEL_API,",
        "TOLLGATE_REGIONS": "EU, US,EU,",
    }
    settings = Settings.from_environ({**GOOD, **environ})
    added = {name: one.provider for name, one in settings.provider_names.items() if name not in PROVIDER_NAMES}
    assert added == {"HOUSE": "PLATFORM", "B": "PLATFORM_MODEL_API"}
    assert settings.regions == ("EU", "US")


@pytest.mark.parametrize("regions", ["E U", "-EU", "EU;US", "x" * 65, "EU/US"])
def test_malformed_regions_are_refused(regions: str) -> None:
    with pytest.raises(SettingsError, match=r"TOLLGATE_REGIONS: expected comma-separated"):
        Settings.from_environ({**GOOD, "TOLLGATE_REGIONS": regions})
