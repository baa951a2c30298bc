"""What a release says about itself: name, version, licence, and which package it brings."""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.version import InvalidVersion, Version

from upstream_snapshots import archive

UNKNOWN = "NOASSERTION"  # SPDX for "not determined"

# Releases put the licence's whole text where its name belongs; its first words tell which it is.
_FIRST_WORDS = {
    "mit license": "MIT",
    "apache license version 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 2-clause": "BSD-2-Clause",
}
_CLASSIFIERS = {
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}


@dataclass(frozen=True)
class About:
    name: str
    version: str  # as PEP 440 normalises it
    licence: str  # SPDX expression, UNKNOWN when the release states none that can be told


def read(path: Path) -> About:
    """The metadata of a wheel or source archive. Raises ArchiveError when it has none."""
    wanted = re.compile(r"PKG-INFO|[^/]+\.dist-info/METADATA")
    found = archive.read(path, lambda member: wanted.fullmatch(member) is not None)
    if len(found) != 1:
        raise archive.ArchiveError(f"{path.name}: expected one METADATA or PKG-INFO, got {sorted(found)}")
    fields = BytesParser().parsebytes(next(iter(found.values())), headersonly=True)
    try:
        version = str(Version(fields.get("Version", "")))
    except InvalidVersion as error:
        raise archive.ArchiveError(f"{path.name}: {error}") from error
    return About(str(fields.get("Name", "")), version, licence(fields))


def licence(fields: Message) -> str:
    """The SPDX expression: License-Expression, else the License field, else the classifiers."""
    for stated in (str(fields.get("License-Expression", "")), str(fields.get("License", ""))):
        words = " ".join(stated.split())
        for beginning, spdx in _FIRST_WORDS.items():
            if words.lower().startswith(beginning):
                return spdx
        try:
            return canonicalize_license_expression(words)
        except InvalidLicenseExpression:
            continue
    classified = [_CLASSIFIERS.get(str(line).rsplit("::", 1)[-1].strip())
                  for line in fields.get_all("Classifier", []) if str(line).startswith("License ::")]
    known = sorted({spdx for spdx in classified if spdx})
    return known[0] if len(known) == 1 and len(classified) == 1 else UNKNOWN


def top_package(paths: Iterable[str], file: str) -> str:
    """The top-level package with most .py files, also below src/. Raises ArchiveError if there is none."""
    paths = set(paths)
    counts: Counter[str] = Counter()
    for path in paths:
        top = path.removeprefix("src/").split("/", 1)[0]
        if path.endswith(".py") and top.isidentifier():
            counts[top] += 1
    for top, _ in counts.most_common():
        if paths & {f"{top}/__init__.py", f"src/{top}/__init__.py"}:
            return top
    raise archive.ArchiveError(f"{file}: no Python package in it")


def port_folder(package: str, version: str, taken: Collection[str]) -> str:
    """The folder for a release's ports: `fla`, or `fla_0_5_2` when another release has that one."""
    return package if package not in taken else f"{package}_{re.sub(r'[^0-9a-z]', '_', version)}"
