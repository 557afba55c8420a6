"""Checks how a checkpoint is described whose `adapter_config.json` a job wrote to break its report."""

import orjson
import pytest

from policy.training.statuses import FULL, LORA
from trainer.edges.checkpoints.description import Description, described


def test_checkpoint_without_the_file_is_full() -> None:
    assert described(None) == Description(FULL)


def test_adapter_names_its_base_model() -> None:
    config = {"base_model_name_or_path": "meta/llama", "r": 8}

    assert described(orjson.dumps(config)) == Description(LORA, "meta/llama", config)


@pytest.mark.parametrize(("opening", "closing"), [(b'{"a":', b"}"), (b'{"a":[', b"]}")])
@pytest.mark.parametrize("levels", [90, 102, 300, 5_000])
def test_configuration_that_is_described_is_one_that_control_can_write(
    opening: bytes, closing: bytes, levels: int
) -> None:
    times = levels // (opening.count(b"{") + opening.count(b"["))

    description = described(opening * times + b"1" + closing * times)

    assert description.checkpoint_type == LORA
    assert (description.lora_adapter_config is not None) == (levels <= 100)
    assert orjson.dumps(description.lora_adapter_config)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[1]",
        b"{",
        b'{"r": NaN}',
        b'{"r": 1e999}',
        b'{"a": "\\ud800"}',
        b"\xff",
        b'{"a":"' + b"x" * 300_000 + b'"}',
    ],
)
def test_what_is_no_object_that_every_parser_takes_describes_nothing(content: bytes) -> None:
    assert described(content) == Description(LORA)
