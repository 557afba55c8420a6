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


LOGIN = {
    "TOLLGATE_OIDC_ISSUER": "https://sso.example/realms/acme",
    "TOLLGATE_OIDC_CLIENT_ID": "tollgate",
    "TOLLGATE_OIDC_CLIENT_SECRET": "hunter2",
    "TOLLGATE_OIDC_ROLE_CLAIM": "groups",
    "TOLLGATE_OIDC_ROLES": "ops=acme:operator",
}


def test_the_console_has_no_login_of_people_unless_it_is_set() -> None:
    assert Settings.from_environ(GOOD).login is None
    login = Settings.from_environ({**GOOD, **LOGIN}).login
    assert login is not None
    assert (login.issuer, login.client_secret) == (LOGIN["TOLLGATE_OIDC_ISSUER"], "hunter2")
    assert "hunter2" not in repr(login)
    public = Settings.from_environ({**GOOD, **LOGIN, "TOLLGATE_OIDC_CLIENT_SECRET": " "}).login
    assert public is not None
    assert public.client_secret == ""


@pytest.mark.parametrize("name", sorted(LOGIN.keys() - {"TOLLGATE_OIDC_CLIENT_SECRET"}))
def test_a_login_with_a_part_missing_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is not set"):
        Settings.from_environ({**GOOD, **LOGIN, name: ""})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ISSUER", "sso.example", "https://"),
        ("ISSUER", "http://sso.example", "https://"),
        ("ISSUER", "https://user:hunter2@sso.example", "https://"),
        ("ISSUER", "https://sso.example/?realm=hunter2", "without a query"),
        ("ISSUER", "https://[::1", "https://"),
        ("ROLE_CLAIM", "realm_access..roles", "a dot of a name"),
        ("ROLES", ",", "1 to 500 pairs"),
        ("ROLES", "ops=acme:operator,dev=acme", "pair 2: expected value=workspace:role"),
        ("ROLES", "=acme:operator", "pair 1: expected value=workspace:role"),
        ("ROLES", "ops=:operator", "pair 1: expected value=workspace:role"),
        ("ROLES", "ops=acme:root", "pair 1: the role must be one of viewer, billing, operator, admin"),
        ("ROLES", "ops=acme:Admin", "pair 1: the role must be one of"),
    ],
)
def test_a_malformed_login_is_refused_with_the_remedy(name: str, value: str, says: str) -> None:
    with pytest.raises(SettingsError, match=f"TOLLGATE_OIDC_{name}: .*{says}") as caught:
        Settings.from_environ({**GOOD, **LOGIN, f"TOLLGATE_OIDC_{name}": value})
    assert "hunter2" not in str(caught.value)
