"""Words that the commands for groups share."""

from typing import Annotated, Final

import typer

GROUP: Final = "group"

Group = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
