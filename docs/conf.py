"""Settings of the documentation: plain Markdown, built offline, every warning an error."""

project = "Liftbridge"
author = "The Liftbridge authors"
project_copyright = "The Liftbridge authors, Apache License 2.0"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "Liftbridge"
html_show_sphinx = False
