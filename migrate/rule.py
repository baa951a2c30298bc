"""What a rule is. Everything that a user reads about a rule comes from the fields of its class."""
from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import libcst as cst

from migrate.asked import NOTHING, Asked
from migrate.source import Source
from migrate.tree import Edit


class Safety(enum.Enum):
    SAFE = "safe"        # same values on every input; applied by default
    REVIEW = "review"    # depends on shapes or dtypes, or changes rounding; applied, and listed for review
    MANUAL = "manual"    # reported, never edited


@dataclass(frozen=True)
class Ref:
    """Where a fact comes from. `evidence`: doc, source, issue, compiled (seen in the gate) or ran."""

    url: str
    says: str
    evidence: str


SAME = "same"            # as an example's `after`: the rule must leave this alone


@dataclass(frozen=True)
class Example:
    """Code before and after a rule: shown to users, and a test.

    `reports` counts the findings that are left for a person. `run` is how tests execute both sides under Triton's
    interpreter and compare: "exact" (to the bit), "close" (float32 rounding), or None where an example is host
    code or a fragment. The last kernel of the example is launched as one program on `inputs`: by parameter,
    "float32[64, 32]" for a tensor of random numbers, anything else as it stands. A rule that looks at other modules
    gets them from `others` (dotted name -> text), and the example itself is then the module called `module`. A rule
    that acts on request gets the request from `asked`.
    """

    title: str
    before: str
    after: str
    reports: int = 0
    run: str | None = None
    inputs: Mapping[str, object] = field(default_factory=dict, hash=False)
    module: str = ""
    others: Mapping[str, str] = field(default_factory=dict, hash=False)
    asked: Asked = NOTHING


@dataclass(frozen=True)
class Note:
    """What a rule said about a node. Its place in the file is worked out only when somebody reads it.

    `nodes` are those it edited: the lines that they stand on are what the message is about.
    """

    rule: type[Rule]
    node: cst.CSTNode
    message: str
    edited: bool
    nodes: tuple[cst.CSTNode, ...] = ()

    def at(self, source: Source) -> Finding:
        tree = source.tree
        line, col, _ = tree.span(self.node)
        above: cst.CSTNode | None = self.node if isinstance(self.node, cst.Decorator) else \
            tree.enclosing(self.node, cst.Decorator)
        if above is None:
            above = tree.statement(self.node)
            if isinstance(above, (cst.FunctionDef, cst.ClassDef)) and above.decorators:
                above = above.decorators[0]
        first = tree.span(above)[0]
        return Finding(self.rule.id, line, col, self.message, self.edited, first)


@dataclass(frozen=True)
class Finding:
    """One sentence for the reviewer, at a place in the version of the file that the rule saw."""

    rule: str
    line: int
    col: int
    message: str
    edited: bool
    statement: int = 0      # first line of the statement around it, where a comment for a person goes


class Rule:
    """Subclass it, and define `visit_<NodeClass>(self, node)` for each LibCST node class it looks at.

    `finish` runs after the last visit. Two verbs: `replace` for an edit, `report` for what a person must decide.
    An object serves one pass over one version of one file.
    """

    id: ClassVar[str]
    name: ClassVar[str]
    summary: ClassVar[str]
    safety: ClassVar[Safety]
    since: ClassVar[str] = "3.2.0"               # oldest triton-ascend this is right for
    until: ClassVar[str | None] = None           # first release it is wrong for
    phase: ClassVar[int] = 0                     # rules run by phase, then by id
    option: ClassVar[str] = ""                   # the option of `port` it acts on, where it acts on request
    triggers: ClassVar[tuple[str, ...]] = ()     # no need to look when the text holds none of these
    references: ClassVar[tuple[Ref, ...]] = ()
    examples: ClassVar[tuple[Example, ...]] = ()

    def __init__(self, source: Source) -> None:
        self.source = source
        self.notes: list[Note] = []
        self.edits: dict[cst.CSTNode, Edit] = {}

    def finish(self) -> None:
        """Called once, after all visits."""

    def report(self, node: cst.CSTNode, message: str) -> None:
        """Something a person has to decide; the code stays."""
        self._add(node, message)

    def replace(self, node: cst.CSTNode, new: Edit, message: str, *, at: cst.CSTNode | None = None) -> bool:
        """An edit, and the sentence the reviewer reads next to it.

        Returns False, and does nothing, where an ignore comment covers the node (or `at`, the node that the edit
        is on behalf of). Edits that must happen together go through `together`.
        """
        return self.together({node: new}, message, at=at or node)

    def together(self, edits: dict[cst.CSTNode, Edit], message: str, *, at: cst.CSTNode) -> bool:
        """Several edits that are one change: all of them or, where an ignore comment covers any, none."""
        if any(self.source.ignored(node, self) for node in (at, *edits)):
            return False
        self._add(at, message, tuple(edits))
        self.edits.update(edits)
        return True

    def _add(self, node: cst.CSTNode, message: str, edited: tuple[cst.CSTNode, ...] = ()) -> None:
        if not self.source.ignored(node, self):
            self.notes.append(Note(type(self), node, message, bool(edited), edited))

    def run(self) -> None:
        """Visit what this rule asked for, in source order within each node class."""
        for name in sorted(n for n in dir(self) if n.startswith("visit_")):
            method = getattr(self, name)
            for node in self.source.tree.all(getattr(cst, name.removeprefix("visit_"))):
                method(node)
        self.finish()
