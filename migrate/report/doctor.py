"""What `migrate doctor` prints."""
from __future__ import annotations

from rich.text import Text

from migrate.gate.doctor import Ability
from migrate.report.page import Page


def text(abilities: list[Ability]) -> None:
    page = Page()
    for ability in abilities:
        said = Text.assemble(("yes" if ability.there else "no ", "green" if ability.there else "yellow"),
                             f"  {ability.name}: {ability.found}")
        page.say(said, hang=5)
        if not ability.there and ability.remedy:
            page.say(ability.remedy, 5, "cyan", hang=0)
