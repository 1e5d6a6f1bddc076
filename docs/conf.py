"""How Sphinx builds the site. `make docs` lays out what it reads: see .ci/docs.py."""

project = "Heddle"
author = "The Heddle authors"
copyright = author  # noqa: A001 - Sphinx calls it so
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "docs/index"
nitpicky = True
html_theme = "furo"
html_title = "Heddle"
html_show_sphinx = False
html_copy_source = False
myst_heading_anchors = 4
