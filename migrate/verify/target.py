"""From what stands on the command line to operators of the catalogue."""
from __future__ import annotations

from pathlib import Path, PurePath

from migrate.errors import UsageError
from ported_kernels import catalog
from ported_kernels.catalog import Operator


def find(target: str) -> list[Operator]:
    """`all`; an operator's name; a contract file (it defines OPERATOR); or a file of a pinned release, by its
    name or the end of its path: every operator that ports a function of that file."""
    known = catalog.operators()
    if target == "all":
        return list(known.values())
    if target in known:
        return [known[target]]
    if target.endswith(".py"):
        if (path := Path(target)).is_file() and "\nOPERATOR = " in path.read_text(encoding="utf-8"):
            return [catalog.from_file(path.resolve())]
        wanted = PurePath(target).parts
        ports = [operator for operator in known.values()
                 if PurePath(operator.upstream.path).parts[-len(wanted):] == wanted]
        if ports:
            return ports
        raise UsageError(f"no operator ports a function of {target!r}; the catalogue has ports from "
                         + ", ".join(sorted({operator.upstream.path for operator in known.values()})))
    raise UsageError(f"no operator {target!r}; there are {', '.join(known)}, and 'all'")
