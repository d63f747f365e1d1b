"""Sphinx configuration. The build needs no network, and neither do the pages it makes."""

from importlib.metadata import version as installed_version
from importlib.resources import files

project = "deconditional"
author = "The deconditional authors"
copyright = "2026, The deconditional authors"
version = release = installed_version("deconditional")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
]
exclude_patterns = ["_build"]

myst_enable_extensions = ["amsmath", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_google_docstring = False
napoleon_use_rtype = False

# MathJax is copied beside the pages rather than fetched when they are read. This one file holds all
# of it, glyphs included: SVG output needs no web fonts.
html_static_path = [str(files("sphinx-mathjax-offline") / "static/mathjax/tex-svg-full.js")]
mathjax_path = "tex-svg-full.js"
mathjax3_config = {
    "tex": {
        "macros": {
            "E": r"\mathbb{E}",
            "Cov": r"\operatorname{Cov}",
            "GP": r"\mathcal{GP}",
            "N": r"\mathcal{N}",
            "diag": r"\operatorname{diag}",
            "tr": r"\operatorname{tr}",
            "T": r"{\mathsf{T}}",
            "ty": r"{\tilde{y}}",
            "fbar": r"{\bar{f}}",
            "Kbar": r"{\bar{K}}",
            "kbar": r"{\bar{k}}",
        }
    }
}

html_theme = "furo"
html_title = f"deconditional {release}"
html_copy_source = False
html_show_sourcelink = False
