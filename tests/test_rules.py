"""Every example of every rule is a test; a rule needs no test file of its own."""
from __future__ import annotations

import ast
import textwrap

import pytest

from migrate import engine
from migrate.project import TextProject
from migrate.rule import SAME, Example, Rule, Safety
from migrate.source import Source

RULES = engine.load()
CASES = [pytest.param(r, e, id=f"{r.id}-{e.title.replace(' ', '-')}") for r in RULES for e in r.examples]
EVIDENCE = {"doc", "source", "issue", "compiled", "ran"}


def text(example: str) -> str:
    return textwrap.dedent(example).strip("\n") + "\n"


def run(rule: type[Rule], before: str, example: Example) -> engine.Outcome:
    project = TextProject({name: text(code) for name, code in example.others.items()})
    source = Source.parse(before, module=example.module, project=project, asked=example.asked)
    return engine.apply(source, [rule])


@pytest.mark.parametrize(("rule", "example"), CASES)
def test_example(rule: type[Rule], example: Example) -> None:
    before = text(example.before)
    after = before if example.after == SAME else text(example.after)
    outcome = run(rule, before, example)
    assert outcome.final.text == after
    ast.parse(after)
    assert bool(outcome.steps) == (before != after)                 # no silent edit, no empty claim
    assert all(step.findings for step in outcome.steps)
    assert len(outcome.open) == example.reports
    assert run(rule, after, example).final.text == after                     # a second run changes nothing


@pytest.mark.parametrize(("rule", "example"), CASES)
def test_windows_line_endings_survive(rule: type[Rule], example: Example) -> None:
    got = run(rule, text(example.before).replace("\n", "\r\n"), example).final.text
    assert "\n" not in got.replace("\r\n", "")


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_card(rule: type[Rule]) -> None:
    assert "## Why" in (rule.__doc__ or "")
    assert "## What it leaves alone" in (rule.__doc__ or "")
    assert rule.references
    assert all(r.url.startswith("https://") and r.evidence in EVIDENCE for r in rule.references)
    kinds = {e.after == SAME for e in rule.examples}
    expected = {True} if rule.safety is Safety.MANUAL else {True, False}
    assert kinds == expected, "needs an example that changes and one that does not"
    assert rule.__module__.rpartition(".")[2] == rule.name.replace("-", "_")


def test_ids_and_names_are_unique() -> None:
    assert len({r.id for r in RULES}) == len({r.name for r in RULES}) == len(RULES)
