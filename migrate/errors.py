"""Errors that end a command: one line for the user, and the exit code that goes with it."""
from __future__ import annotations


class MigrateError(Exception):
    """Could not do it: the input does not parse, a file was edited by hand, a rule crashed."""

    exit_code = 3


class UsageError(MigrateError):
    """The command line, the configuration or the environment is off."""

    exit_code = 2
