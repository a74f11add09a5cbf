"""docs/metrics.md, the dashboard and the alerts name only existing metrics and labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from batchq.api.reasons import Finish, Leaving, Waiting
from batchq.api.transaction import Word
from batchq.assembly import BUILTIN_PLUGINS
from batchq.daemon.gauges import KINDS
from batchq.daemon.metrics import MEASURES, Measure
from tests.tidy.source import ROOT, report

PAGE = ROOT / "docs" / "metrics.md"
RULES = ROOT / "conf" / "prometheus" / "rules.yaml"
SCRAPES = ROOT / "conf" / "prometheus" / "prometheus.yaml"
DASHBOARD = ROOT / "conf" / "grafana" / "batchq.json"

BY_NAME = {measure.name: measure for measure in MEASURES}
#: Labels that Prometheus adds to all series, and the labels of histograms.
EVERYWHERE = {"job", "instance"}
#: Labels with closed lists of values.
WORDS = {
    "reason": {str(word) for words in (Waiting, Leaving, Finish) for word in words},
    "word": {word.value for word in Word},
    "kind": set(KINDS),
    "action": {"preempt", "reclaim"},
    "plugin": set(BUILTIN_PLUGINS),
    "state": {"ready", "cordoned", "silent"},
    "result": {"changed", "idle", "unavailable", "applied", "refused", "ok"},
    "resource": {"cpu", "memory", "pods"},
}
_NAME = re.compile(r"\b(batchq_\w+)(?:\{([^}]*)\})?")
_MATCH = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")


def measure_of(name: str) -> Measure | None:
    """Return the metric of a series; a histogram has three."""
    part = re.fullmatch(r"(\w+)_(bucket|sum|count)", name)
    if part is not None and (found := BY_NAME.get(part[1])) is not None:
        return found if found.kind == "histogram" else None
    found = BY_NAME.get(name)
    return None if found is not None and found.kind == "histogram" else found


def faults_of(expression: str) -> list[str]:
    """Return the names in a PromQL expression that do not exist."""
    faults, labels = [], set(EVERYWHERE)
    for name, selector in _NAME.findall(expression):
        measure = measure_of(name)
        if measure is None:
            faults.append(f"no metric {name}")
            continue
        labels |= {*measure.labels, *(("le",) if name.endswith("_bucket") else ())}
        for label, operator, value in _MATCH.findall(selector):
            if label not in {*measure.labels, *EVERYWHERE}:
                faults.append(f"{name} has no label {label}")
            values = value.split("|") if operator in ("=~", "!~") else [value]
            known = WORDS.get(label)
            faults += [
                f"{label} is never {one!r}"
                for one in values
                if known is not None and one and one not in known and not one.startswith("$")
            ]
    for grouping in _GROUPING.findall(expression):
        faults += [
            f"nothing in {expression!r} has label {label}"
            for label in re.split(r"[,\s]+", grouping.strip())
            if label not in labels
        ]
    return faults


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = [rule for group in document["groups"] for rule in group["rules"]]
    return found


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return document


def expressions() -> Iterator[tuple[str, str]]:
    """Yield each expression with its place."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["definition"]


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_an_expression_names_existing_metrics_and_labels(place: str, expression: str) -> None:
    assert "batchq_" in expression
    faults = faults_of(expression)
    assert not faults, report(faults, f"{place} asks for what batchq.daemon.metrics has not:")


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("batchq_leaders == 0", "no metric batchq_leaders"),
        ("rate(batchq_cycle_duration_seconds[5m])", "no metric batchq_cycle_duration_seconds"),
        ("batchq_leader_bucket", "no metric batchq_leader_bucket"),
        ('batchq_leader{queue="a"}', "batchq_leader has no label queue"),
        ('batchq_waiting_groups{reason=~"Gated|Suspended"}', "reason is never 'Gated'"),
        ("sum by (node) (batchq_leader)", "nothing in 'sum by (node) (batchq_leader)' has label n"),
    ],
)
def test_the_rule_detects_missing_metrics_and_labels(expression: str, fault: str) -> None:
    [found] = faults_of(expression)
    assert found.startswith(fault)


def test_annotations_name_labels_that_the_expression_leaves() -> None:
    for rule in rules():
        text = " ".join(rule["annotations"].values())
        for label in re.findall(r"\$labels\.(\w+)", text):
            measures = [measure_of(name) for name, _ in _NAME.findall(rule["expr"])]
            known = {label for measure in measures if measure for label in measure.labels}
            groupings = _GROUPING.findall(rule["expr"])
            assert label in known | EVERYWHERE, rule["alert"]
            if "sum by" in rule["expr"]:
                assert label in groupings[0], f"{rule['alert']} sums {label} away"


def test_alerts_have_unique_names_a_severity_and_a_summary() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]


def test_prometheus_is_given_these_rules() -> None:
    scrapes = yaml.safe_load(SCRAPES.read_text(encoding="utf-8"))
    assert scrapes["rule_files"] == [RULES.name]
    assert [job["job_name"] for job in scrapes["scrape_configs"]] == ["batchq"]


def test_the_dashboard_can_be_imported() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another panel"
        assert place["x"] + place["w"] <= 24
        taken |= cells


def rows() -> list[list[str]]:
    """Return the cells of the page's table of metrics."""
    text = PAGE.read_text(encoding="utf-8")
    _, _, table = text.partition("| metric | type | labels | unit | meaning |\n")
    lines = table.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_page_has_every_metric_with_its_type_labels_and_meaning() -> None:
    listed = [(cells[0], cells[1], cells[2], cells[4]) for cells in rows()]
    assert listed == [
        (
            f"`{measure.name}`",
            measure.kind,
            ", ".join(f"`{label}`" for label in measure.labels) or "–",
            measure.help,
        )
        for measure in MEASURES
    ]


def test_the_page_says_seconds_where_the_name_does() -> None:
    for name, _, _, unit, _ in rows():
        assert ("seconds" in name) == ("seconds" in unit), name


def test_the_page_has_every_label() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## Labels")[2]
    firsts = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    told_of = {label for cell in firsts for label in re.findall(r"`(\w+)`", cell)}
    assert {label for measure in MEASURES for label in measure.labels} <= told_of


def test_names_use_base_units_and_labels_identify_no_user() -> None:
    for measure in MEASURES:
        assert re.fullmatch(r"batchq_[a-z_]+", measure.name)
        assert not re.search(r"_(ms|milli\w*|minutes|mib|kb)\b", measure.name)
        assert measure.name.endswith("_total") == (measure.kind == "counter")
        assert {"group", "pod", "user", "namespace", "node", "gate", "uid"}.isdisjoint(
            measure.labels
        )
