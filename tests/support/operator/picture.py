"""The picture of `rallypoint status --watch` in the README.

`PYTHONPATH=tests python tests/support/operator/picture.py` draws it again.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from rallypoint.cli.operator.views.status import Extent, render_status
from support.operator import scenes

FILE = Path(__file__).parents[3] / "docs" / "images" / "status.svg"
WIDTH = 92
TITLE = "rallypoint status train --watch"
# No font is fetched from another host: a picture in a page may not do that.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "font-family: Fira Code, monospace", "font-family: Menlo, Consolas, DejaVu Sans Mono, monospace"
)


def draw() -> str:
    """Return the picture."""
    job = scenes.show(scenes.recovered())
    console = Console(
        file=io.StringIO(),
        record=True,
        width=WIDTH,
        force_terminal=True,
        color_system="standard",
        highlight=False,
    )
    console.print(render_status(job, job.nodes, Extent()))
    svg = console.export_svg(title=TITLE, code_format=FORMAT, unique_id="status")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


if __name__ == "__main__":
    FILE.write_text(draw(), encoding="utf-8")
    print(FILE)
