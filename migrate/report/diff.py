"""A unified diff that `git apply` and `patch -p1` accept where upstream's file lies at its package path."""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from migrate.blame import Hunk, hunks
from migrate.port import Ported

NO_NEWLINE = "\\ No newline at end of file\n"


def diff(ports: Iterable[Ported], names: Mapping[str, str]) -> str:
    """`names` maps rule ids to rule names, for the headings of the hunks."""
    return "".join(_one(p, names) for p in ports)


def _one(ported: Ported, names: Mapping[str, str]) -> str:
    found = hunks(ported)
    if not found:
        return ""
    out = [f"--- a/{ported.path}\n", f"+++ b/{ported.path}\n"]
    for hunk in found:
        # in the file's own encoding, which may lack a character of a sentence
        encoding = ported.file.encoding
        out.append(heading(hunk, names).encode(encoding, "replace").decode(encoding) + "\n")
        for change in hunk.lines:
            ending = "" if change.text.endswith("\n") else "\n" + NO_NEWLINE
            out.append(change.sign + change.text + ending)
    return "".join(out)


def heading(hunk: Hunk, names: Mapping[str, str]) -> str:
    """Line numbers, and the reasons: what stands after the second @@ is for readers, programs skip it."""
    said: dict[str, list[str]] = {}
    for note in hunk.notes:
        said.setdefault(note.rule, []).append(first_sentence(note.message))
    why = "; ".join(f"{' '.join(filter(None, (rule, names.get(rule))))}: {'; '.join(dict.fromkeys(sentences))}"
                    for rule, sentences in said.items())
    return (f"@@ -{_range(hunk.old_start, hunk.old_length)} +{_range(hunk.new_start, hunk.new_length)} @@"
            + (f" {why}" if why else ""))


def first_sentence(message: str) -> str:
    return re.split(r"(?<=[.?!])\s", " ".join(message.split()), maxsplit=1)[0]


def _range(start: int, length: int) -> str:
    return f"{start if length else start - 1},{length}"
