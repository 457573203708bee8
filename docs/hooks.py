"""Hooks of the documentation site: the README is its first page.

The README has absolute links, so that they work on a package index. On the site, links to its pages
become relative again, so a broken one fails the build.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"
PAGE = re.compile(r"https://github\.com/rallypoint-dev/rallypoint/blob/main/docs/([\w/-]+\.md)")
IMAGE = "https://raw.githubusercontent.com/rallypoint-dev/rallypoint/main/docs/"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the README for the first page, and any other page as it is."""
    if page.file.src_uri != "index.md":
        return markdown
    return PAGE.sub(r"\1", README.read_text(encoding="utf-8")).replace(IMAGE, "")
