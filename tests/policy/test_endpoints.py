"""Slugs and each provider's field rules (docs/reference/management-api.md#targets)."""

from typing import Any

import pytest

from policy.endpoints import (
    PROVIDERS,
    EndpointRuleError,
    Target,
    VendorCConfig,
    check_slug,
    check_target,
    is_platform_hosted,
)

PLACE = VendorCConfig("proj", "eu-west1")
VALUES: dict[str, Any] = {
    "model_id": "m1",
    "environment_name": "staging",
    "secret_id": "s1",
    "target_model": "t1",
    "base_url": "https://h.example/v1",
    "vendor_c_config": PLACE,
}


@pytest.mark.parametrize("slug", ["acme/fast", "a/b", "A-1._x/0.b_c-D", "acme/" + "x" * 128])
def test_well_formed_slugs_are_accepted(slug: str) -> None:
    check_slug(slug, {"acme", "a", "A-1._x"})


@pytest.mark.parametrize(
    "slug",
    [
        "",
        "acme",
        "acme/",
        "/fast",
        "acme/a/b",
        "acme/.a",
        "-acme/a",
        "acme/a b",
        "acme/a\n",
        "acme/ä",
        "acme/" + "x" * 129,
    ],
)
def test_malformed_slugs_are_refused(slug: str) -> None:
    with pytest.raises(EndpointRuleError, match="a slug is") as caught:
        check_slug(slug, {"acme"})
    assert caught.value.field == "slug"


def test_a_foreign_prefix_is_refused_and_the_owned_ones_are_named() -> None:
    with pytest.raises(EndpointRuleError, match=r"'evil' is not one this workspace owns \(acme, beta\)"):
        check_slug("evil/x", {"beta", "acme"})
    with pytest.raises(EndpointRuleError, match=r"\(none\)"):
        check_slug("acme/x", ())


def test_provider_fields_are_those_of_the_specification() -> None:
    assert {name: (set(rules.required), set(rules.optional)) for name, rules in PROVIDERS.items()} == {
        "PLATFORM": ({"model_id"}, {"environment_name", "target_model"}),
        "PLATFORM_MODEL_API": ({"secret_id", "target_model"}, set()),
        "VENDOR_A": ({"secret_id", "target_model"}, set()),
        "VENDOR_B": ({"secret_id", "target_model"}, set()),
        "VENDOR_C": ({"secret_id", "target_model", "vendor_c_config"}, set()),
        "VENDOR_B_COMPATIBLE": ({"secret_id", "target_model", "base_url"}, set()),
    }


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_target_has_all_fields_of_its_provider_and_no_other(provider: str) -> None:
    rules = PROVIDERS[provider]
    full = {name: VALUES[name] for name in rules.required}
    check_target(Target(provider, **full))
    check_target(Target(provider, **full, **{name: VALUES[name] for name in rules.optional}))
    for name in rules.required:
        with pytest.raises(EndpointRuleError, match=f"{provider} needs {name}") as caught:
            check_target(Target(provider, **{k: v for k, v in full.items() if k != name}))
        assert caught.value.field == name
    for name in VALUES.keys() - rules.required - rules.optional:
        with pytest.raises(EndpointRuleError, match=f"{provider} has no field {name}") as caught:
            check_target(Target(provider, **full, **{name: VALUES[name]}))
        assert caught.value.field == name


OPTIONS: dict[str, Any] = {"upstream_state": "PASS", "dialects": ("MESSAGES",), "price_options": "REFUSE"}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_target_may_have_the_options_of_all_targets(provider: str) -> None:
    check_target(Target(provider, **{name: VALUES[name] for name in PROVIDERS[provider].required}, **OPTIONS))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("upstream_state", value) for value in ("", "pass", "ALLOW")),
        *(("price_options", value) for value in ("", "refuse", "NONE")),
        *(("dialects", value) for value in ((), ("chat_completions",), ("COMPLETIONS",), ("MESSAGES", "MESSAGES"))),
    ],
)
def test_an_option_with_another_value_is_refused(name: str, value: object) -> None:
    with pytest.raises(EndpointRuleError, match=name) as caught:
        check_target(Target("VENDOR_B", secret_id="s", target_model="t", **{name: value}))  # type: ignore[arg-type]
    assert caught.value.field == name


def test_a_target_refuses_state_and_passes_price_options_by_default() -> None:
    target = Target("VENDOR_B")
    assert (target.passes_upstream_state, target.passes_price_options) == (False, True)
    explicit = Target("VENDOR_B", **OPTIONS)
    assert (explicit.passes_upstream_state, explicit.passes_price_options) == (True, False)
    later = Target("VENDOR_B", upstream_state="LATER", price_options="LATER")
    assert (later.passes_upstream_state, later.passes_price_options) == (False, False), "unknown values refuse"


@pytest.mark.parametrize("provider", ["", "platform", "VENDOR_D"])
def test_an_unknown_provider_is_refused(provider: str) -> None:
    with pytest.raises(EndpointRuleError, match="must be one of PLATFORM"):
        check_target(Target(provider))
    assert not is_platform_hosted(provider)


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_required_field_is_refused(value: str) -> None:
    with pytest.raises(EndpointRuleError, match="target_model must not be empty") as caught:
        check_target(Target("VENDOR_B", secret_id="s", target_model=value))
    assert caught.value.field == "target_model"


@pytest.mark.parametrize(
    ("place", "field"),
    [
        (VendorCConfig("", "eu"), "project_id"),
        (VendorCConfig("a/b", "eu"), "project_id"),
        (VendorCConfig("p", ""), "location"),
        (VendorCConfig("p", "evil.example/"), "location"),
        (VendorCConfig("p", "eu\n"), "location"),
    ],
)
def test_a_vendor_c_config_that_could_change_the_host_is_refused(place: VendorCConfig, field: str) -> None:
    with pytest.raises(EndpointRuleError) as caught:
        check_target(Target("VENDOR_C", secret_id="s", target_model="t", vendor_c_config=place))
    assert caught.value.field == f"vendor_c_config.{field}"


def test_platform_and_model_api_are_platform_hosted() -> None:
    assert [name for name in PROVIDERS if is_platform_hosted(name)] == ["PLATFORM", "PLATFORM_MODEL_API"]
