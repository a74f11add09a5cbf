"""Configuration of the site: `make docs` builds it with Sphinx, MyST and Furo.

The sources are the Markdown pages of the repository, where they are, so that their links work in a
checkout and on the site. The navigation is made from the tables of docs/README.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from batchq import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

project = "batchq"
version = release = __version__
html_title = f"batchq {__version__}"
extensions = ["myst_parser"]
root_doc = "docs/README"
include_patterns = [
    "docs/**.md",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "actions/README.md",
    "conf/**.md",
    "batchq/**.md",
]
exclude_patterns = ["build", "dist", "tests", "benchmarks", ".*"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
pygments_style = "default"
myst_heading_anchors = 6

PAGES = (ROOT / "docs" / "reference").glob("*.md")
PACKAGES = (ROOT / "batchq").rglob("*.md")
#: Section of docs/README.md -> pages made from the code (`docs/reference.py`), which come first.
BEFORE = {"Reference": sorted(f"reference/{page.stem}" for page in PAGES)}
#: Section -> other pages that its table does not name.
AFTER = {
    "Reference": ["../conf/acl/README"],
    "Project": sorted(f"../{page.relative_to(ROOT).with_suffix('')}" for page in PACKAGES),
}


def navigation(text: str) -> str:
    """Return docs/README.md with a hidden table of contents for each section with a table."""
    out = []
    for section in re.split(r"(?=^## )", text, flags=re.MULTILINE):
        title = section.partition("\n")[0].removeprefix("## ")
        pages = [
            page
            for row in re.findall(r"^\| (\[.+?) \|", section, re.MULTILINE)
            for page in re.findall(r"\]\(([^)#]+)\.md\)", row)
        ]
        pages = list(dict.fromkeys([*BEFORE.get(title, []), *pages, *AFTER.get(title, [])]))
        out.append(section)
        if pages:
            head = f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n"
            out.append(head + "\n".join(pages) + "\n```\n\n")
    return "".join(out)


def read(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add the navigation. Show diagrams as text, since drawing them needs a remote script."""
    source[0] = source[0].replace("```mermaid", "```text")
    if docname == root_doc:
        source[0] = navigation(source[0])


def redirect(app: Sphinx, failure: Exception | None) -> None:
    """Write an index.html that leads to the first page."""
    if failure is None and app.builder.name == "html":
        page = f'<meta http-equiv="refresh" content="0; url={root_doc}.html"><title>batchq</title>'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the two hooks."""
    app.connect("source-read", read)
    app.connect("build-finished", redirect)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
