"""Pages about files whose every name and attribute tries to take the reader's browser over.

The files go through the command line; the pages are opened in a real browser.
"""

import contextlib
import io
import json
import warnings

import numpy as np
import pytest

from browser import CHROMIUM, Browser
from deconditional.cli import main as cli
from deconditional.datasets import split_cells, synthetic_fields
from deconditional.errors import visible
from deconditional.fields import learn
from deconditional.fields.learn import Learner
from deconditional.report import write as report
from reliability import record, tries
from test_downscale_command import Regression
from test_report import COMPARISON, Page, fabricate

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")
pytestmark = pytest.mark.reliability

RUN = "document.title='pwned';window.hacked=1;"
PAYLOADS = {
    "script": f"<script>{RUN}</script>",
    "end of style": f"</style></title></head><script>{RUN}</script>",
    "end of attribute": f'"><img src=x onerror="{RUN}">',
    "single quotes": f"' onmouseover='{RUN}' autofocus onfocus='{RUN}",
    "svg": f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    "address": f'javascript:{RUN}" <a href="javascript:{RUN}">click</a>',
    "template": "{{ 7 * 191 }}{% for a in range(9) %}{{ a }}{% endfor %}{# x #}",
    "comment": "<!-- ]]> --><![CDATA[",
    "refresh": '<meta http-equiv="refresh" content="0;url=https://example.org/"><base href=//evil>',
    "frame": f'<iframe srcdoc="<script>parent.{RUN}</script>"></iframe>',
    "entities": "&lt;script&gt;&#60;script&#62;",
    "controls": "a\x1b[31mb\x07c\x7fd\x85e",
    "order of letters": "abc\u202egnp.exe\u2066\u2067\u200b\ufeff",
    "scripts of the world": "降水量 δοκιμή تجربة 🌧️ e\u0301\u0302\u0303\u0304\u0305" * 3,
    "a million letters": "A" * 10**6,
    "a million words": "word " * 200_000,
}
NAME = f"<img src=x onerror={RUN}>"
"""Also, after a letter, the name of a variable: netCDF forbids little."""

MEASURE = r"""HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/;
({
    title: document.title,
    hacked: typeof window.hacked,
    tags: [...new Set([...document.querySelectorAll('*')].map(e => e.localName))].sort(),
    handlers: [...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames())
        .filter(name => name.startsWith('on')),
    links: [...document.links].map(a => a.getAttribute('href')),
    hidden: [...document.documentElement.textContent].filter(c => HIDDEN.test(c)).length,
    width: innerWidth,
    content: document.documentElement.scrollWidth,
    height: document.documentElement.scrollHeight,
    images: [...document.images].map(i => i.complete ? i.naturalWidth : 0),
    wide: [...document.querySelectorAll('body *')]
        .filter(e => !e.closest('.scroll') && e.getBoundingClientRect().right > innerWidth + 1)
        .map(e => e.tagName),
    headings: document.querySelectorAll('h2').length,
})"""
TAGS = {
    *("html", "head", "meta", "link", "title", "style", "body", "header", "main", "footer", "nav"),
    *("section", "div", "p", "h1", "h2", "strong", "a", "ol", "ul", "li"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "img", "figcaption"),
}


@pytest.fixture(scope="module")
def from_files(tmp_path_factory):
    """A result and its page, made by the command line from files with hostile contents."""
    folder = tmp_path_factory.mktemp("hostile-files")
    texts = list(PAYLOADS.values())
    roles = ("tas", ["altitude", "cloud"], ["water_vapour"])
    data = split_cells(synthetic_fields(12, 24), *roles, block=3, matched=1.0, noise_std=0.1)
    fine, coarse = data.fine.rename(cloud=f"c{NAME}"), data.coarse.rename(tas=f"t{NAME}")
    for k, (name, variable) in enumerate([*fine.variables.items(), *coarse.variables.items()]):
        about = {"long_name": texts[k % len(texts)], "comment": texts[(k + 3) % len(texts)]}
        if name not in ("lat", "lon"):
            about["units"] = texts[(k + 5) % len(texts)]
        variable.attrs.update(about)
    coarse[f"t{NAME}"].attrs |= {"units": PAYLOADS["script"], "long_name": PAYLOADS["svg"]}
    for k, part in enumerate((fine, coarse)):
        part.attrs |= {name: texts[(j + k) % len(texts)] for j, name in enumerate(PAYLOADS)}
        part.attrs |= {"history": "\n".join(texts), "title": PAYLOADS["end of style"]}
    fine.to_netcdf(folder / "fine.nc")
    coarse.to_netcdf(folder / "coarse.nc")
    given = ["--fine", folder / "fine.nc", "--coarse", folder / "coarse.nc"]
    given += ["--target", f"t{NAME}", "--covariates", f"altitude,c{NAME}"]
    given += ["--out", folder / "out.nc", "--report", folder / "out.html", "--samples", "1"]
    fitted, mixed = Learner.fit, learn.mixed
    Learner.fit = lambda self, name, data, z: Regression(data, z)
    learn.mixed = list  # of such models there is no mixture
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(["downscale", *map(str, given)])
    finally:
        Learner.fit, learn.mixed = fitted, mixed
    assert (code, err.getvalue()) == (0, "")
    assert visible(out.getvalue()) == out.getvalue()
    return folder


@pytest.fixture(scope="module")
def from_facts(tmp_path_factory):
    """A page about a forged result: every fact is hostile."""
    texts = [*PAYLOADS.values(), "lone \ud800 surrogate"]
    every = {f"{k} {text[:300]}": text for k, text in enumerate(texts)}
    changes = {
        "target": NAME,
        "units": PAYLOADS["end of attribute"],
        "model": PAYLOADS["script"],
        "mediation": PAYLOADS["a million words"],
        "covariates": texts,
        "mediators": texts,
        "options": every,
        "understood": [[text[:300], text] for text in texts],
        "fit": {"converged": False, "notes": texts, "details": every},
        "parameters": [dict.fromkeys(("name", "value", "unit", "meaning"), t) for t in texts],
        "comparison": COMPARISON
        | {
            "columns": [t[:300] for t in texts],
            "rows": [[t[:300], t, 10**30] for t in texts],
            "chosen": texts[0],
            "folds": PAYLOADS["template"],
        },
        "timings": every,
        "versions": every,
    }
    result, truth = fabricate(text=PAYLOADS["a million letters"], samples=0, times=2, **changes)
    result.attrs |= {"title": PAYLOADS["end of style"], "source": PAYLOADS["frame"]}
    result.attrs["history"] = "\n".join(texts)
    truth.attrs["units"] = PAYLOADS["script"]
    folder = tmp_path_factory.mktemp("hostile-facts")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        report.write_report(result, folder / "out.html", truth)
    return folder


def test_output_is_fit_for_other_tools(from_files):
    with xr.open_dataset(from_files / "out.nc") as data:
        texts = [
            value
            for attrs in (data.attrs, *(v.attrs for v in data.variables.values()))
            for value in attrs.values()
            if isinstance(value, str)
        ]
        facts = json.loads(data.attrs["deconditional"])
    assert facts["target"] == f"t{NAME}" and facts["units"] == PAYLOADS["script"]
    assert all(visible(text) == text for text in texts)


@pytest.mark.parametrize("which", ["from_files", "from_facts"])
def test_pages_hold_hostile_texts_as_texts(request, which):
    path = request.getfixturevalue(which) / "out.html"
    page = Page(path)
    assert {tag for tag, _ in page.tags} <= TAGS
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    text = "".join(page.texts.values())
    assert PAYLOADS["script"] in text or PAYLOADS["svg"] in text
    if which == "from_facts":
        for name, payload in PAYLOADS.items():
            assert visible(payload)[:1000] in text, name
        assert r"lone \ud800 surrogate" in text
        assert f"The truth is in {PAYLOADS['script']!r}" in page.texts["calibration"]
        assert "1337" not in text  # 7 * 191
    assert visible(text) == text
    assert path.stat().st_size < 20e6


# ---------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    started = Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: install chromium")
@pytest.mark.parametrize(
    ("which", "policy", "width"),
    [
        ("from_files", True, 1200),
        ("from_facts", False, 390),
        ("from_facts", True, 1200),
        ("from_files", False, 390),
    ][: tries(2, 4)],
)
def test_nothing_runs_in_a_browser(request, browser, tmp_path, which, policy, width):
    path = request.getfixturevalue(which) / "out.html"
    if not policy:
        whole = path.read_text(encoding="utf-8")
        lines = [line for line in whole.split("\n") if "Content-Security-Policy" not in line]
        assert len(lines) == whole.count("\n")
        path = tmp_path / "bare.html"
        path.write_text("\n".join(lines), encoding="utf-8")
    seen = browser.look(path, width, MEASURE)
    (tmp_path / "page.png").write_bytes(seen["png"])
    assert seen["hacked"] == "undefined"
    assert seen["title"].endswith(": downscaling report")
    assert set(seen["tags"]) <= TAGS
    assert seen["handlers"] == []
    assert all(link.startswith("#") for link in seen["links"])
    assert seen["hidden"] == 0
    assert seen["requests"] == [path.as_uri()]
    assert seen["trouble"] == []
    assert seen["headings"] == 8
    assert seen["content"] <= seen["width"] == width
    assert seen["wide"] == []
    assert seen["images"] and min(seen["images"]) > 0
    assert np.frombuffer(seen["png"][:8], np.uint8)[0] == 0x89
    how = "" if policy else ", without its content policy"
    record(
        "hostile reports",
        f"texts {which.replace('_', ' ')} in Chromium{how}",
        len(PAYLOADS),
        {"shown as text, nothing ran": len(PAYLOADS)},
    )


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: install chromium")
def test_the_policy_stops_what_escaping_would_miss(browser, tmp_path, from_files):
    page = (from_files / "out.html").read_text(encoding="utf-8")
    spoilt = page.replace("<main>", f"<main>{PAYLOADS['script']}{PAYLOADS['end of attribute']}")
    assert spoilt != page
    for policy in (True, False):
        path = tmp_path / f"{policy}.html"
        path.write_text(
            spoilt if policy else spoilt.replace("Content-Security-Policy", "X"), encoding="utf-8"
        )
        seen = browser.look(path, 1200, MEASURE)
        assert seen["hacked"] == ("undefined" if policy else "number")
