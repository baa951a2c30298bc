"""pip's configuration, for what bears on fetching a file."""
from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass

from migrate.errors import UsageError

PYPI = "https://pypi.org/simple/"


@dataclass(frozen=True)
class PipSettings:
    """Where to look and how to connect; `timeout` in seconds."""

    index_urls: tuple[str, ...] = (PYPI,)
    find_links: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    timeout: float = 15.0


def load() -> PipSettings:
    """pip's settings from its files and PIP_* variables; without pip, from the variables alone.

    As in pip a variable wins over a file and replaces it; of the files, the sections [global], [install]
    and [download] are read, because mirrors' instructions name any of the three.
    Raises UsageError when pip cannot read its own configuration or a value makes no sense.
    """
    values: dict[str, str] = {}
    if importlib.util.find_spec("pip"):
        # pip itself knows where its files are on this system; -P: no `pip` folder of the current directory.
        command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "config", "list"]
        listed = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if listed.returncode:
            lines = listed.stderr.strip().splitlines() or [f"exit status {listed.returncode}"]
            raise UsageError(f"pip's configuration cannot be read: {lines[-1]}")
        sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, "download": {}}
        for line in listed.stdout.splitlines():
            key, _, value = line.partition("=")
            section, _, option = key.rpartition(".")
            if section in sections:
                sections[section][option] = ast.literal_eval(value)
        for settings in sections.values():
            values |= settings
    for variable, value in os.environ.items():
        if variable.startswith("PIP_") and value:
            values[variable[4:].lower().replace("_", "-")] = value

    def words(option: str) -> tuple[str, ...]:
        return tuple(values.get(option, "").split())

    timeout = values.get("timeout", values.get("default-timeout", "15"))
    try:
        seconds = float(timeout)
    except ValueError:
        raise UsageError(f"pip's timeout is {timeout!r}: not a number of seconds") from None
    no_index = values.get("no-index", "").lower() in ("1", "true", "yes", "on", "y", "t")
    main = values.get("index-url") or values.get("pypi-url") or PYPI
    return PipSettings(
        index_urls=() if no_index else (main, *words("extra-index-url")),
        find_links=words("find-links"), trusted_hosts=words("trusted-host"),
        cert=values.get("cert"), client_cert=values.get("client-cert"),
        proxy=values.get("proxy"), timeout=seconds,
    )
