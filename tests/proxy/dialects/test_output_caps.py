"""The output cap that a spend limit granted: in every body that goes upstream, and nothing else changes."""

import re
from typing import Any

import orjson
import pytest

from policy.endpoints import COMPATIBLE, Target
from proxy.dialects.output_caps import capped_members
from proxy.dialects.registry import Dialects
from proxy.json_text.large_json import parse_with_placeholders
from tests.fakes.seals import SEAL_KEYS
from tests.proxy.dialects.samples import *
