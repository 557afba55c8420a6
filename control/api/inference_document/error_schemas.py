"""Schemas of errors: the gateway's own, those of upstreams, and those within streams."""

from control.api.inference_document.json_schema import Json, anything, choice, record, reference, text
from control.api.inference_document.refusals import ANY_ERROR, CODES, FLAT

SCHEMAS: Json = {
    FLAT: record(
        "An error of the gateway itself. 401 and 403 have `error` alone, and so has an upstream's error that was"
        " plain text.",
        {
            "error": text("The message, for people. The status line repeats it."),
            "error_code": text("The cause, for programs.", examples=["RATE_LIMITED"], enum=list(CODES)),
        },
        ["error"],
    ),
    "UpstreamErrorV1": record(
        "An upstream's own error, as it came. A translated call's has what the caller's dialect adds.",
        {
            "error": record(
                "The error as the vendor describes it.",
                {
                    "message": anything("The message, mostly text."),
                    "type": anything("The kind of error, mostly text."),
                    "code": anything("A word or a number; null in the OpenAI dialects where there is none."),
                    "param": anything("The parameter at fault, or null."),
                },
            ),
            "type": text("`error` in the Messages dialect."),
        },
        ["error"],
    ),
    ANY_ERROR: choice(
        "An error of the gateway (`error` is text), or one of the upstream (`error` is an object).",
        reference(FLAT),
        reference("UpstreamErrorV1"),
    ),
}
