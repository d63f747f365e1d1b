"""Sphinx configuration. The build needs no network, and neither do the pages it makes."""

import os
import re
import sys
from importlib.metadata import version as installed_version
from importlib.resources import files
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "gallery"))  # where Sphinx-Gallery finds _style

project = "deconditional"
author = "The deconditional authors"
copyright = "2026, The deconditional authors"
version = release = installed_version("deconditional")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery", "results/data"]

# Scripts run while the pages are built, and again only when they have changed. Compiling takes them
# longer than computing, so the compiler does without most of its optimisations.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "examples",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"^_",
    "within_subsection_order": "FileNameSortKey",
    "reset_modules": ("_style.reset",),
    "image_srcset": ["2x"],
    "thumbnail_size": (640, 448),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "notebook_extensions": set(),
    "show_signature": False,
    "remove_config_comments": True,
    "write_computation_times": False,
    "min_reported_time": 600,
}

myst_enable_extensions = ["amsmath", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_google_docstring = False
napoleon_use_rtype = False

# MathJax is copied beside the pages rather than fetched when they are read. This one file holds all
# of it, glyphs included: SVG output needs no web fonts.
html_static_path = [
    "_static",
    str(files("sphinx-mathjax-offline") / "static/mathjax/tex-svg-full.js"),
]
html_css_files = ["site.css"]
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


def setup(app):
    """Leave out the blank line that a doctest of Markdown needs at the end of a block."""

    def tidy(app, name, source):
        source[0] = re.sub(r"\n\n```\n", "\n```\n", source[0])

    app.connect("source-read", tidy)
