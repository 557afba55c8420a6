"""A job's weights, fetched from their sources into the job's own directory before its first command."""

from collections.abc import Callable, Sequence
from pathlib import Path

from policy.training.weights import Weights
from runtime.environment import SettingsError
from runtime.http.checked_dialling import trusting
from runtime.shares.places import Places
from trainer.edges.weights.downloads import Downloads
from trainer.edges.weights.fetching import Budget, Fetch
from trainer.settings import CheckpointSizes, Settings, WeightsTerms

__all__ = ["WeightsFetcher", "fetcher_of", "terms_of"]
MAX_FETCHES = 4
"""The most jobs whose weights are fetched at a time."""


class WeightsFetcher:
    """Satisfies `trainer.backend.WeightsSource`. `sizes`: the bound of all weights of one job."""

    def __init__(self, terms: WeightsTerms, sizes: CheckpointSizes) -> None:
        self._terms = terms
        self._sizes = sizes
        self._places = Places(MAX_FETCHES, "fetches of weights")

    async def fetch(
        self, weights: Sequence[Weights], directory: Path, workspace_id: str, tell: Callable[[str], None]
    ) -> None:
        """Fetch all of them, in this order. WeightsError."""
        await self._places.wait(workspace_id, is_bounded=False)
        try:
            async with Downloads(self._terms) as downloads:
                budget = Budget(self._sizes.of(workspace_id))
                for place, one in enumerate(weights):
                    await Fetch(place, one, downloads, tell).run(directory, budget)
        finally:
            self._places.leave(workspace_id)


def terms_of(settings: Settings) -> WeightsTerms:
    """The terms, which any machine can keep to. SettingsError if the file of authorities cannot be read."""
    terms = settings.weights
    if settings.egress_ca_file is None:
        return terms
    try:
        pem = Path(settings.egress_ca_file).read_text(encoding="ascii")
        trusting(None, pem)
        return terms.trusting(pem)
    except (OSError, ValueError):
        raise SettingsError("TOLLGATE_EGRESS_CA_FILE: expected a PEM file that can be read") from None


def fetcher_of(settings: Settings) -> WeightsFetcher:
    """Return what fetches weights on this machine."""
    return WeightsFetcher(terms_of(settings), settings.weights_sizes)
