"""The rules of the house that can be counted: ``python tools/house.py``.

Lines installed, the longest module, the longest function body, entries at the top of the package,
imports inside functions. docs/architecture.md says why a limit was raised, if one ever was.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "deconditional"
MOST_LINES, LONGEST_MODULE, LONGEST_BODY, MOST_ENTRIES = 34_562, 400, 50, 14

OPTIONAL = {
    *("IPython", "cf_xarray", "cftime", "dask", "distributed", "itur", "jinja2", "matplotlib"),
    *("geopandas", "netCDF4", "pandas", "pyproj", "rasterio", "rioxarray", "shapely"),
    *("xarray", "zarr"),
}
"""Packages that extras bring: what needs them may import them where it runs."""

SLOW = {"cli"}
"""Packages that import what they compute with when it runs: help and complaints come at once."""


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its signature and its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def imported(node: ast.AST) -> list[str]:
    """Packages that a statement imports, by their first name."""
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [(node.module or "").split(".")[0]]
    return []


def complaints() -> Iterator[str]:
    """What breaks a rule, a line each."""
    modules = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    total = sum(len(text.splitlines()) for text in modules.values())
    if total > MOST_LINES:
        yield f"{total} lines installed, at most {MOST_LINES}"
    entries = [p.name for p in PACKAGE.iterdir() if not p.name.startswith(("__", "py.typed"))]
    if len(entries) > MOST_ENTRIES:
        yield f"{len(entries)} entries at the top, at most {MOST_ENTRIES}: {', '.join(entries)}"
    for path, text in modules.items():
        name = path.relative_to(PACKAGE)
        if len(text.splitlines()) > LONGEST_MODULE:
            yield f"{name}: {len(text.splitlines())} lines, at most {LONGEST_MODULE}"
        for function in functions(ast.parse(text)):
            if (size := body_lines(function)) > LONGEST_BODY:
                yield f"{name}:{function.lineno} {function.name}: {size} lines of body"
            for node in ast.walk(function):
                for package in imported(node):
                    if package not in OPTIONAL and name.parts[0] not in SLOW:
                        yield f"{name}:{node.lineno} imports {package} inside {function.name}"


def main() -> int:
    """Print what breaks a rule; the exit code says whether anything does."""
    found = sorted(set(complaints()))
    print("\n".join(found) if found else f"The house keeps its rules ({PACKAGE.name}).")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
