"""Licences of what the package needs, from the metadata of what is installed, as Markdown.

python tools/licences.py          # the core and the extra "all", with all they bring along
python tools/licences.py plots    # the core and this extra

Needs the package to be installed, with those extras, and ``packaging``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = "deconditional"


def needed(extras: Sequence[str]) -> dict[str, bool]:
    """Every distribution that is needed, and whether it is needed directly."""
    found: dict[str, bool] = {}
    waiting = [(ROOT, frozenset(extras), True)]
    seen = set()
    while waiting:
        name, asked, direct = waiting.pop()
        if (name, asked) in seen:
            continue
        seen.add((name, asked))
        for line in metadata.requires(name) or ():
            each = Requirement(line)
            wanted = each.marker is None or any(
                each.marker.evaluate({"extra": extra}) for extra in ("", *asked)
            )
            if wanted:
                place = canonicalize_name(each.name)
                if place != ROOT:
                    found[place] = found.get(place, False) or direct
                waiting.append((place, frozenset(each.extras), direct and place == ROOT))
    return found


def licence(about: metadata.PackageMetadata) -> str:
    """The licence as an SPDX expression, a classifier, or the first words of a text."""
    if about["License-Expression"]:
        return str(about["License-Expression"])
    classified = [
        each.rsplit(" :: ", 1)[-1]
        for each in about.get_all("Classifier") or ()
        if each.startswith("License :: ") and each != "License :: OSI Approved"
    ]
    text = (about["License"] or "").strip().splitlines()
    return ", ".join(classified) or (text[0][:60] if text else "not said")


def main(extras: Sequence[str]) -> int:
    """Print the table."""
    print("| package | version | licence | needed |")
    print("|---|---|---|---|")
    missing = 0
    for name, direct in sorted(needed(extras or ("all",)).items()):
        how = "directly" if direct else "by others"
        try:
            about = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            print(f"| {name} | not installed | | {how} |")
            missing = 1
        else:
            print(f"| {name} | {about['Version']} | {licence(about)} | {how} |")
    return missing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
