"""Logs words of vendors for the end of an answer that are unknown here, each once per worker."""

import logging

log = logging.getLogger(__name__)

MAX_UNKNOWN_STOPS = 100
"""The most words that a worker logs."""


class UnknownStops:
    """The words that were logged."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def note(self, slug: str, word: str) -> None:
        """`word`: without secrets, as Python writes it."""
        if word in self._logged or len(self._logged) >= MAX_UNKNOWN_STOPS:
            return
        self._logged.add(word)
        log.warning(
            "A target ended a translated answer with a reason that is unknown here (slug %s: %s). Callers see an"
            " ordinary end. If it means anything else, please report it.",
            *(slug, word),
        )
