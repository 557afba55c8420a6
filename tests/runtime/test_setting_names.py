"""Warnings for unknown settings name the setting that was probably meant."""

from runtime.setting_names import warnings_of


def test_a_misspelt_setting_is_named_with_the_likely_one() -> None:
    (warning,) = warnings_of({"TOLLGATE_REQUEST_TIMOUT_S": "5", "TOLLGATE_DATA": "x", "PATH": "/bin"})
    assert warning == (
        "TOLLGATE_REQUEST_TIMOUT_S is not a setting and is ignored. Did you mean TOLLGATE_REQUEST_TIMEOUT_S?"
    )


def test_an_unknown_setting_is_answered_with_the_settings_page() -> None:
    (warning,) = warnings_of(["TOLLGATE_ZZZZ"])
    assert "docs/reference/settings.md" in warning
