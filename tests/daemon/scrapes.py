"""The result of a scrape of /metrics, to be read by the name of a series and its labels."""

from __future__ import annotations

import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

Key = tuple[str, frozenset[tuple[str, str]]]


class Scrape:
    """The samples of one exposition."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples: dict[Key, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self._samples, f"{sample.name} {sample.labels} twice"
                self._samples[key] = sample.value

    def value(self, series: str, **labels: str) -> float | None:
        """Return the value of `batchq_<series>` with exactly these labels, or None."""
        return self._samples.get((f"batchq_{series}", frozenset(labels.items())))

    def all(self, series: str) -> dict[frozenset[tuple[str, str]], float]:
        """Return labels -> value of every series of this name."""
        return {
            labels: value
            for (name, labels), value in self._samples.items()
            if name == f"batchq_{series}"
        }

    @property
    def label_values(self) -> set[str]:
        """Return every value of every label."""
        return {value for _, labels in self._samples for _, value in labels}


def get(url: str, *, method: str = "GET", accept: str = "") -> tuple[int, str]:
    """Return status and body of one request."""
    request = urllib.request.Request(url, method=method, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


def scrape(url: str) -> Scrape:
    """Scrape /metrics of this server."""
    status, text = get(f"{url}/metrics")
    assert status == 200
    return Scrape(text)
