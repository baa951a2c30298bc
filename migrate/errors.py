"""Errors that end a command: one line for the user, and the exit code that goes with it."""
from __future__ import annotations


class MigrateError(Exception):
    """Could not do it: the input does not parse, a file was edited by hand, a rule crashed."""

    exit_code = 3


class UsageError(MigrateError):
    """The command line, the configuration or the environment is off."""

    exit_code = 2


class DoesNotCompile(MigrateError):
    """Ascend's compiler refuses a kernel without which nothing can be done."""

    exit_code = 4


class Wrong(MigrateError):
    """What ran was found to be wrong."""

    exit_code = 5
