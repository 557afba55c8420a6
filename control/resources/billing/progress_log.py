"""Log lines on work over all events, which may take long: how far it is once a minute, and its end."""

import logging
import time

from control.records.times import time_text

_LOG_EVERY_S = 60.0


class ProgressLog:
    """Logs the progress of one pass if it takes more than a minute.

    `reached` has places for the workspace and the time that the pass has reached, `ended` one for the time of its end.
    """

    def __init__(self, log: logging.Logger, reached: str, ended: str) -> None:
        self._log = log
        self._reached = reached
        self._ended = ended
        self._logged_at_s = time.monotonic()
        self._is_long = False

    def reaches(self, workspace_id: str, until_ms: int) -> None:
        if time.monotonic() - self._logged_at_s < _LOG_EVERY_S:
            return
        self._logged_at_s = time.monotonic()
        self._is_long = True
        self._log.info(self._reached, workspace_id, time_text(until_ms))

    def ends(self, until_ms: int) -> None:
        if self._is_long:
            self._log.info(self._ended, time_text(until_ms))
