"""The journeys' fixtures that the cases use too."""

from tests.journeys.conftest import numbers, session

__all__ = ["numbers", "session"]
