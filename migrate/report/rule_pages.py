"""Pages about rules, made from the rules: `migrate explain`, `migrate rules`, and docs/rules.

    python -m migrate.report.rule_pages docs/rules      writes the pages; a test fails when they are stale
"""
from __future__ import annotations

import difflib
import inspect
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from migrate import engine
from migrate.errors import UsageError
from migrate.rule import SAME, Example, Rule

EVIDENCE = {
    "doc": "documentation says so", "source": "read in source code", "issue": "reported by others",
    "compiled": "seen with the real compiler", "ran": "seen in a run"}

NAME = re.compile(r"\S*(?:[_/(`@]|\w\.\w|[a-z][A-Z]|[a-z]\d)")      # a first word that is an identifier or a path


def page(rule: type[Rule]) -> str:
    """The page of one rule, as Markdown."""
    until = f" up to, not including, {rule.until}" if rule.until else " and later"
    out = [f"# {rule.id} {rule.name}\n\n{sentence(rule.summary)}\n\n"
           f"Safety: **{rule.safety.value}**. For triton-ascend {rule.since}{until}.\n\n"
           f"{inspect.cleandoc(rule.__doc__ or '')}\n\n## Examples\n"]
    out += [_example(e) for e in rule.examples]
    out.append("\n## References\n\n" + "".join(
        f"- {sentence(ref.says)} ({EVIDENCE[ref.evidence]}: <{ref.url}>)\n" for ref in rule.references))
    out.append(f"\nSwitch it off with `--ignore {rule.id}`, or for one statement with "
               f"`# migrate: ignore[{rule.id}] reason`.\n")
    return "".join(out)


def catalogue(rules: Sequence[type[Rule]]) -> str:
    """The list of all rules, as Markdown."""
    rows = "".join(f"| [{r.id}]({file_name(r)}) | `{r.name}` | {r.safety.value} | {sentence(r.summary)} |\n"
                   for r in rules)
    return ("# Rules\n\nMade from the rules by `python -m migrate.report.rule_pages docs/rules`. "
            "`migrate explain ID` prints a page.\n\n"
            f"| id | name | safety | what it is about |\n|---|---|---|---|\n{rows}")


def pages(rules: Sequence[type[Rule]]) -> dict[str, str]:
    """File name -> text of everything under docs/rules."""
    return {"README.md": catalogue(rules), **{file_name(r): page(r) for r in rules}}


def file_name(rule: type[Rule]) -> str:
    return f"{rule.id}-{rule.name}.md"


def explain(what: str, rules: Sequence[type[Rule]]) -> str:
    """The page of a rule by id or name; for `tl.something`, the rules that mention it. Markdown.

    Raises UsageError for a name that is neither.
    """
    for rule in rules:
        if what in (rule.id, rule.id.lower(), rule.name):
            return page(rule)
    if not re.fullmatch(r"(tl|triton|torch)(\.\w+)+", what):
        known = [key for r in rules for key in (r.id, r.name)]
        near = difflib.get_close_matches(what, known, n=3)
        raise UsageError(f"no rule is called {what!r}" + (f"; like it: {', '.join(near)}" if near else "")
                         + "; `migrate rules` lists them, `migrate explain tl.dot` asks by symbol")
    symbol = what.replace("triton.language.", "tl.")
    hits = [r for r in rules if mentions(r, symbol)]
    if not hits:
        return f"No rule mentions `{symbol}`: it is left as it is.\n"
    return f"Rules that mention `{symbol}`:\n\n" + "".join(
        f"- {r.id} `{r.name}`: {sentence(r.summary)}\n" for r in hits)


def mentions(rule: type[Rule], symbol: str) -> bool:
    text = " ".join((rule.__doc__ or "", rule.summary, *(e.before for e in rule.examples)))
    return re.search(rf"(?<![\w.]){re.escape(symbol)}(?!\w)", text) is not None


def sentence(text: str) -> str:
    text = " ".join(text.split())
    if not NAME.match(text):
        text = text[:1].upper() + text[1:]
    return text + ("" if text.endswith((".", "?", "!")) else ".")


def _example(example: Example) -> str:
    before = textwrap.dedent(example.before).strip("\n").splitlines()
    out = f"\n### {sentence(example.title).rstrip('.')}\n\n"
    if example.after == SAME:
        code = "\n".join(before)
        out += f"```python\n{code}\n```\n"
    else:
        after = textwrap.dedent(example.after).strip("\n").splitlines()
        lines = [line for line in difflib.ndiff(before, after) if not line.startswith("?")]
        out += "```diff\n" + "\n".join((line[0] + line[2:]).rstrip() for line in lines) + "\n```\n"
    if example.reports:
        out += f"\nLeft for a person: {example.reports} finding{'' if example.reports == 1 else 's'}.\n"
    return out


def main(folder: str = "docs/rules") -> None:
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    made = pages(engine.load())
    for old in place.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (place / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:2])
