"""What `migrate doctor` prints."""
from __future__ import annotations

from rich.console import Console
from rich.text import Text

from migrate.gate.doctor import Ability


def text(abilities: list[Ability]) -> None:
    console = Console()   # honours NO_COLOR
    for ability in abilities:
        said = Text.assemble(("yes" if ability.there else "no ", "green" if ability.there else "yellow"),
                             f"  {ability.name}: {ability.found}")
        console.print(said, soft_wrap=True)
        if not ability.there and ability.remedy:
            console.print(Text(f"     {ability.remedy}", style="cyan"), soft_wrap=True)
