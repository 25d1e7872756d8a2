"""A scrape as Prometheus reads it."""

from collections.abc import Iterator

from prometheus_client.core import Sample
from prometheus_client.parser import text_string_to_metric_families

from tests.cast import Api


class Scrape:
    """The families of one scrape, by their names."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}

    def series(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Return the values of one name by their labels, in alphabetical order."""
        return {tuple(sorted(sample.labels.items())): sample.value for sample in self._samples() if sample.name == name}

    def value(self, name: str, /, **labels: str) -> float:
        """Return the one value with exactly these labels."""
        return self.series(name)[tuple(sorted(labels.items()))]

    def names(self) -> set[str]:
        """Return the names of all series."""
        return {sample.name for sample in self._samples()}

    def _samples(self) -> Iterator[Sample]:
        return (sample for family in self.families.values() for sample in family.samples)


def scrape(api: Api, path: str = "/metrics") -> Scrape:
    """Scrape the server; fail if it refuses."""
    answer = api.get(path)
    assert answer.status == 200, answer.raw
    return Scrape(answer.raw.decode())
