"""`/v1/gateway/prices`: what calls through a slug cost, from a date on. Amounts are decimal text.

See docs/reference/usage-reports.md#prices.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

from control.api.changes.conditions import tagged
from control.api.changes.ownership import OwnableRequestV1, OwnableResponseV1
from control.api.protocol.encoding import Encoded
from control.api.protocol.lists import Listing, Position, encoder, list_page
from control.api.protocol.operations import ApiRequest, Operation
from control.api.protocol.schemas import (
    INTEGRAL,
    NO_NUL,
    DeletedV1,
    PageQueryV1,
    PaginationResponseV1,
    RequestV1,
    ResponseV1,
    SlugText,
)
from control.records.policy import PriceRecord
from control.resources.billing import prices
from control.resources.changes.tags import price_tag
from policy.billing import MAX_TIER_CHARS
from policy.keys.permissions import Permission
from policy.price_wire import (
    MAX_MODEL_TOKENS,
    MAX_SERVICE_TIERS,
    MULTIPLIER_PATTERN,
    parse_multiplier,
    price_from_wire,
)
from policy.prices import (
    AMOUNT_PATTERN,
    CURRENCY_PATTERN,
    DATE_PATTERN,
    Price,
    parse_amount,
    parse_currency,
    parse_date,
)


def _checked(parse: Callable[[str], object]) -> AfterValidator:
    """The text, when `parse` reads it."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


def _shown(pattern: str, example: str) -> Any:
    """Describe a text field in the schema; the parser validates, with a better message."""
    return Field(examples=[example], json_schema_extra={"pattern": f"^{pattern}$"})


AmountText = Annotated[str, _checked(parse_amount), _shown(AMOUNT_PATTERN.pattern, "0.15")]
CurrencyText = Annotated[str, _checked(parse_currency), _shown(CURRENCY_PATTERN.pattern, "EUR")]
DateText = Annotated[str, _checked(parse_date), _shown(DATE_PATTERN.pattern, "2026-01-31")]
MultiplierText = Annotated[str, _checked(parse_multiplier), _shown(MULTIPLIER_PATTERN.pattern, "0.5")]
TierName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TIER_CHARS), Field(json_schema_extra=NO_NUL)]
TokenCount = Annotated[int, Field(ge=1, le=MAX_MODEL_TOKENS), INTEGRAL]


class PutLongContextRequestV1(RequestV1):
    """The prices of all tokens of a call whose input, cached input and cache writes included, is above a bound."""

    above_input_tokens: TokenCount
    input_per_million: AmountText
    cached_input_per_million: AmountText
    cache_write_per_million: AmountText | None = Field(None, description="By default that of input.")
    output_per_million: AmountText


class PutServiceTierRequestV1(RequestV1):
    """The factor on what the tokens of a call of this tier cost."""

    multiplier: MultiplierText


Tiers = Annotated[
    dict[TierName, PutServiceTierRequestV1],
    Field(max_length=MAX_SERVICE_TIERS, description="By the tier's name as the provider reports it; others are 1."),
]


class PutPriceRequestV1(OwnableRequestV1):
    """A price. Amounts are decimal text: per million tokens, and per call."""

    slug: SlugText
    valid_from: DateText = Field(description="The UTC date from which it holds, until the slug's next price.")
    currency: CurrencyText
    input_per_million: AmountText = Field(description="Uncached input.")
    output_per_million: AmountText
    cached_input_per_million: AmountText | None = Field(None, description="By default that of uncached input.")
    cache_write_per_million: AmountText | None = Field(None, description="By default that of uncached input.")
    cache_write_1h_per_million: AmountText | None = Field(None, description="By default that of other cache writes.")
    audio_input_per_million: AmountText | None = Field(None, description="By default that of uncached input.")
    image_input_per_million: AmountText | None = Field(None, description="By default that of uncached input.")
    audio_output_per_million: AmountText | None = Field(None, description="By default that of output.")
    image_output_per_million: AmountText | None = Field(None, description="By default that of output.")
    per_call: AmountText | None = Field(None, description="By default 0.")
    per_server_tool_call: AmountText | None = Field(None, description="By default 0.")
    long_context: PutLongContextRequestV1 | None = Field(None, description="By default the prices above hold.")
    service_tiers: Tiers | None = None
    max_input_tokens: TokenCount | None = Field(None, description="What the model takes at most.")
    max_output_tokens: TokenCount | None = Field(None, description="What the model gives at most.")


class LongContextV1(ResponseV1):
    """The prices of all tokens of a call whose input is above a bound."""

    above_input_tokens: int
    input_per_million: str
    cached_input_per_million: str
    cache_write_per_million: str
    output_per_million: str


class ServiceTierV1(ResponseV1):
    """The factor on what the tokens of a call of this tier cost."""

    multiplier: str


class PriceV1(ResponseV1):
    """The price of calls through a slug from the UTC date `valid_from` until the slug's next price."""

    slug: str
    valid_from: str
    currency: str
    input_per_million: str
    cached_input_per_million: str
    cache_write_per_million: str
    cache_write_1h_per_million: str
    audio_input_per_million: str
    image_input_per_million: str
    output_per_million: str
    audio_output_per_million: str
    image_output_per_million: str
    per_call: str
    per_server_tool_call: str
    long_context: LongContextV1 | None
    service_tiers: dict[str, ServiceTierV1] | None
    max_input_tokens: int | None
    max_output_tokens: int | None


class GatewayPriceV1(PriceV1, OwnableResponseV1):
    """A price, and the policy file that owns it."""


class DeletedGatewayPriceV1(GatewayPriceV1, DeletedV1):
    """The deleted price."""


class PricesResponseV1(ResponseV1):
    """One page of prices, ordered by slug and `valid_from`."""

    items: list[GatewayPriceV1]
    pagination: PaginationResponseV1


class PricesQueryV1(PageQueryV1):
    """Selects prices."""

    slug: str | None = Field(None, max_length=257, description="Of this slug only.")


class DeletePriceQueryV1(RequestV1):
    """Names a price."""

    slug: str = Field(max_length=257)
    valid_from: DateText


async def _put(request: ApiRequest) -> Encoded:
    body = request.body_as(PutPriceRequestV1)
    price = price_from_wire(body.slug, body.model_dump())
    record = await prices.put_price(request.store, request.workspace_id, price, body.owner_change())
    return tagged(_response(record), price_tag(record))


async def _list(request: ApiRequest) -> Encoded:
    async def fetch(at: Position[PriceRecord]) -> Sequence[PriceRecord]:
        after = None if at.after is None else (str(at.after[0]), int(at.after[1]))
        return await prices.read_prices(request.store, request.workspace_id, at.filters["slug"], after, at.limit)

    def position_of(record: PriceRecord) -> tuple[str, int]:
        return (record.price.slug, record.price.valid_from_ms)

    return await list_page(request, Listing("prices", fetch, position_of, encoder(_response), ("slug",)))


async def _delete(request: ApiRequest) -> DeletedGatewayPriceV1:
    query = request.query_as(DeletePriceQueryV1)
    position = (query.slug, parse_date(query.valid_from))
    record = await prices.remove_price(request.store, request.workspace_id, position)
    return DeletedGatewayPriceV1(**prices.shown_record(record))


def _response(record: PriceRecord) -> GatewayPriceV1:
    return GatewayPriceV1(**prices.shown_record(record))


def price_response(price: Price) -> PriceV1:
    return PriceV1(**prices.shown_price(price))


_PATH = "/v1/gateway/prices"
_DELETED = DeletedGatewayPriceV1
OPERATIONS = (
    Operation(
        *("PUT", _PATH, _put, "Set a price", GatewayPriceV1),
        body=PutPriceRequestV1,
        errors=(400, 409),
        needs=Permission.PRICES,
        is_tagged=True,
    ),
    Operation(
        "GET", _PATH, _list, "List prices", PricesResponseV1, query=PricesQueryV1, errors=(400,), needs=Permission.READ
    ),
    Operation(
        *("DELETE", _PATH, _delete, "Delete a price", _DELETED),
        query=DeletePriceQueryV1,
        errors=(400, 404),
        needs=Permission.PRICES,
        is_tagged=True,
    ),
)
