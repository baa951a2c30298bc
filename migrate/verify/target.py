"""From what stands on the command line to operators of the catalogue, and to the ports that they run."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path, PurePath

from migrate import ports
from migrate.errors import UsageError
from migrate.ports import Wanted
from ported_kernels import catalog
from ported_kernels.catalog import Operator
from upstream_snapshots import sync


def find(target: str) -> list[Operator]:
    """`all`; an operator's name; a contract file (it defines OPERATOR); or a file of a pinned release, by its
    name or the end of its path, or the port itself: every operator that runs the port of that file."""
    known = catalog.operators()
    if target == "all":
        return list(known.values())
    if target in known:
        return [known[target]]
    if target.endswith(".py"):
        path = Path(target)
        if path.is_file() and "\nOPERATOR = " in path.read_text(encoding="utf-8"):
            return [catalog.from_file(path.resolve())]
        return _running(target, [operator for operator in known.values() if operator.port])
    raise UsageError(catalog.unknown(target))


def _running(target: str, operators: list[Operator]) -> list[Operator]:
    release, _, name = target.rpartition(":")
    path = Path(name)
    if path.is_file():      # a file on the disk means that file, whatever else has its name
        at = path.resolve()
        found = [operator for operator in operators
                 if at in (operator.port, sync.find(operator.upstream.release).root.resolve() / operator.upstream.path)]
    else:
        wanted = PurePath(name).parts
        found = [operator for operator in operators if PurePath(operator.upstream.path).parts[-len(wanted):] == wanted
                 and release in ("", operator.upstream.release)]
    if found:
        return found
    by_hand = [operator.name for operator in catalog.operators().values()
               if not operator.port and PurePath(operator.upstream.path).name == path.name]
    hint = f" ({', '.join(by_hand)}: code of our own, after it)" if by_hand else ""
    raise UsageError(f"no operator runs the port of {target!r}{hint}; the catalogue has ports of "
                     + ", ".join(sorted({operator.upstream.path for operator in operators})))


def prepare(operators: Iterable[Operator], note: Callable[[str], None] = lambda text: None) -> None:
    """Makes the ports that the operators run and that are missing or not what the rules make today.

    `note` hears of each. A port that was edited by hand is left as it is, and run so. Raises MigrateError when a
    release cannot be had or a port cannot be made.
    """
    ports.make((Wanted(operator.port, operator.upstream.release, operator.upstream.path, operator.upstream.asked)
                for operator in operators if operator.port), note)
