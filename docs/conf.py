"""Settings of the site: `sphinx-build -W -n --keep-going docs build/site`, without a network."""

import re

from sphinx.application import Sphinx

import dovetail

project = "dovetail"
release = dovetail.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
]
exclude_patterns = ["images"]

html_theme = "furo"
html_title = f"dovetail {release}"
html_copy_source = False
html_show_copyright = False

# Pages are Markdown that GitHub shows too: fences of mermaid and links to headings as there.
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3
highlight_language = "none"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Docstrings are plain text: `x` is code there, as in Markdown, and one entry may name several arguments.
default_role = "literal"
napoleon_use_param = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
ALIASES = ("Amount", "Budgets", "Callback", "Counts", "DeviceLike", "Dtypes", "Given", "Loras") + (
    "MaxMemory",
    "Modes",
    "Places",
    "Shares",
    "Tiling",
    "Weights",
)
autodoc_type_aliases = dict(zip(ALIASES, ALIASES, strict=True))
nitpick_ignore_regex = [(r"py:.*", r".*")]  # types of other libraries: their pages are on the network


def by_name(app: Sphinx, what: str, name: str, thing: object, options: object, signature: str, result: str) -> object:
    """A signature in which the aliases stand by name."""
    return tuple(text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text) for text in (signature, result))


def setup(app: Sphinx) -> None:
    """Has Sphinx ask `by_name` of each signature."""
    app.connect("autodoc-process-signature", by_name)
