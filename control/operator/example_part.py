"""The part "example" of `tollgate up --example-upstream`: a scripted vendor in OpenAI's and Anthropic's place.

See docs/reference/command-line.md#running-the-product.
"""

from collections.abc import Mapping

from control.edges.process.http_probe import answers_ok
from control.operator.stack_parts import PYTHON_MODULE, TERMINAL_SIGNALS, StackError, StackPart, terminate
from policy.endpoints import PROVIDERS
from runtime.child_process import Launch

HOST = "127.0.0.1"
_GRACE_S = 5.0
SETTINGS = [
    one.base_url.setting
    for one in PROVIDERS.values()
    if one.base_url is not None and one.base_url.default is not None and "{" not in one.base_url.default
]
"""The settings of the vendors whose place it takes: those with one address for all."""
NOTICE = (
    "example: a scripted vendor on this machine answers in OpenAI's and Anthropic's place. Its calls are limited and"
    " billed as theirs; leave out --example-upstream where real calls are wanted"
)


def example_settings(port: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The settings that lead calls there. StackError if `environment` leads them elsewhere."""
    for setting in SETTINGS:
        if environment.get(setting):
            raise StackError(f"--example-upstream takes this vendor's place: unset {setting}, or leave out the flag")
    return dict.fromkeys(SETTINGS, _url(port))


def example_part(port: int, environment: Mapping[str, str], lock: int) -> StackPart:
    """The part. It gets none of our settings: what it answers may depend on no secret."""
    argv = [*PYTHON_MODULE, "control.demo.example_vendor", "--port", str(port)]
    own = {name: value for name, value in environment.items() if not name.startswith("TOLLGATE_")}
    launch = Launch(argv, own, (lock,), TERMINAL_SIGNALS)
    return StackPart("example", launch, lambda: answers_ok(f"{_url(port)}/health"), terminate, _GRACE_S)


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"
