"""Domain errors and the HTTP responses they become."""

import json
from collections.abc import Iterator

import pytest

from control import errors
from control.api.protocol.errors import problem_of, render
from control.errors import (
    CheckpointStoreUnavailableError,
    DomainError,
    GroupHasCreditError,
    IllegalStatusError,
    InvalidFieldError,
    NotEnoughCreditError,
    NotRotatableError,
    OlderProxiesError,
    OtherCreditError,
    OtherCurrencyError,
    PreconditionFailedError,
    RateLimitedError,
    RoleTooHighError,
    SumsWithoutEventsError,
    TooManyBoundsError,
    TooManyKeysError,
    TooManyPricesError,
    TooManyWebhooksError,
)
from control.resources.training.errors import (
    MissingSecretsError,
    TooManyJobsError,
    TooManyProjectsError,
    TooManyUploadsError,
)
from control.resources.workspaces import WorkspaceError


def error_classes(base: type[DomainError] = DomainError) -> Iterator[type[DomainError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from error_classes(kind)


_COUNTED = (
    *(RateLimitedError, TooManyBoundsError, TooManyJobsError, TooManyPricesError),
    *(TooManyKeysError, TooManyProjectsError, TooManyWebhooksError),
)
"""Errors whose message names a figure."""


def example_of(kind: type[DomainError]) -> DomainError:
    if issubclass(kind, InvalidFieldError):
        return kind("slug", "required")
    if issubclass(kind, _COUNTED):
        return kind(3)
    if issubclass(kind, MissingSecretsError):
        return kind(["one"])
    if issubclass(kind, PreconditionFailedError):
        return kind("it was changed since you read it")
    if issubclass(kind, OlderProxiesError):
        return kind("limits of OUTPUT_TOKEN")
    if issubclass(kind, OtherCurrencyError):
        return kind("group grp_1", "EUR")
    if issubclass(kind, RoleTooHighError):
        return kind(["trust"])
    if issubclass(kind, NotRotatableError):
        return kind("tg_1", "it has expired")
    if issubclass(kind, OtherCreditError | GroupHasCreditError):
        return kind("one", "1.00", "EUR")
    if issubclass(kind, NotEnoughCreditError):
        return kind("1.00", "EUR")
    if issubclass(kind, IllegalStatusError):
        return kind("ACTIVE", "FAILED", ())
    if issubclass(kind, SumsWithoutEventsError):
        return kind(1000, "2026-11-01", (128_000,))
    if issubclass(kind, TooManyUploadsError):
        return kind(100, 20 * 1024**3)
    if issubclass(kind, CheckpointStoreUnavailableError):
        return kind("FileNotFoundError: the bucket does not exist")
    return kind()


@pytest.mark.parametrize(
    "kind", [kind for kind in error_classes() if kind.__module__ == errors.__name__], ids=lambda kind: kind.__name__
)
def test_every_domain_error_is_rendered_as_a_response(kind: type[DomainError]) -> None:
    error = example_of(kind)
    answer = render(problem_of(error))
    assert answer.status in (400, 403, 404, 409, 410, 412, 429, 503)
    body = json.loads(answer.body)  # type: ignore[arg-type]  # text is encoded by then
    assert body["error"] == body["message"] == error.message != ""
    assert body["code"].isupper()


def test_an_invalid_field_is_named_in_the_details() -> None:
    problem = problem_of(InvalidFieldError("targets.0.base_url", "must be https"))
    assert (problem.status, problem.code, problem.message) == (400, "INVALID_REQUEST", "must be https")
    assert [(detail.field, detail.message) for detail in problem.details] == [("targets.0.base_url", "must be https")]


def test_a_rate_limit_says_when_to_retry() -> None:
    answer = render(problem_of(RateLimitedError(7)))
    assert (answer.status, answer.headers["Retry-After"]) == (429, "7")


def test_an_unmapped_error_class_raises_key_error() -> None:
    with pytest.raises(KeyError):
        problem_of(WorkspaceError("no workspace is called 'x'"))
