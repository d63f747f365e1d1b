"""The report: its numbers against oracles, its text in a parser, its look in a browser."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from matplotlib.cbook import is_math_text
from scipy import stats

from deconditional.errors import UsageError
from deconditional.fields.io import open_fields
from deconditional.report import maps, plots, sections
from deconditional.report import write as report
from deconditional.report.grids import area_weights, grid_of, plane
from deconditional.report.page import number
from deconditional.report.plots import DIVERGING
from deconditional.report.sections import summary
from deconditional.report.truth import align_truth
from deconditional.report.write import read_result

BLOCK = 4
"""Fine cells along a side of a coarse cell."""


# ---------------------------------------------------------------------- a result of the contract


def coordinates(kind, rows, columns):
    """Fine and coarse axes, (dims, coords), of a grid with northern rows first."""
    if kind == "projected":
        names, step, origin = ("y", "x"), 5000.0, (3_200_000.0, 410_000.0)
        attrs = [
            {"standard_name": f"projection_{a}_coordinate", "units": "m", "axis": a.upper()}
            for a in names
        ]
    else:
        names, step, origin = ("lat", "lon"), 0.25, (52.0, 352.0)
        attrs = [
            {"standard_name": "latitude", "units": "degrees_north"},
            {"standard_name": "longitude", "units": "degrees_east"},
        ]
    fine, coarse = {}, {}
    for name, sign, start, size, about in zip(
        names, (-1, 1), origin, (rows, columns), attrs, strict=True
    ):
        centres = start + sign * step * np.arange(size * BLOCK)
        if name == "lon":
            centres = centres % 360
        fine[name] = (name, centres, about)
        middle = start + sign * step * (BLOCK * np.arange(size) + (BLOCK - 1) / 2)
        coarse[f"coarse_{name}"] = (
            f"coarse_{name}",
            middle % 360 if name == "lon" else middle,
            about,
        )
    return names, fine, coarse


def fabricate(
    kind="geographic",
    distribution="normal",
    times=0,
    samples=3,
    calendar="standard",
    text="2-metre temperature",
    **changes,
):
    """A result and the truth it was made from, as deconditional downscale would write it."""
    rng = np.random.default_rng(7)
    rows, columns = 5, 7
    names, fine, coarse = coordinates(kind, rows, columns)
    shape = (rows * BLOCK, columns * BLOCK)
    up, across = np.meshgrid(*(np.linspace(0, 1, n) for n in shape), indexing="ij")
    steps = max(times, 1)
    phase = np.arange(steps)[:, None, None] / 3
    truth = (
        12 + 5 * np.sin(4 * across + phase) - 6 * up + 1.5 * np.sin(25 * across) * np.cos(19 * up)
    )
    std = np.broadcast_to(0.5 + 0.8 * up, truth.shape)
    mean = truth + std * rng.standard_normal(truth.shape)
    if distribution != "normal":
        mean, truth = np.maximum(mean - 8, 0.3), np.maximum(truth - 8, 0.0)
    draws = mean + std * rng.standard_normal((samples, *truth.shape))
    missing = np.zeros(shape, dtype=bool)
    missing[:BLOCK, :BLOCK] = True
    mean = np.where(missing, np.nan, mean)
    role = rng.permutation(np.resize([0, 1, 2, 3, 2, 1, 2], rows * columns)).reshape(rows, columns)
    blocks = truth.reshape(steps, rows, BLOCK, columns, BLOCK).mean((2, 4))
    means = mean.reshape(steps, rows, BLOCK, columns, BLOCK).mean((2, 4))
    observed = np.where(role >= 2, blocks + 0.1 * rng.standard_normal(blocks.shape), np.nan)
    lead = ("time",) if times else ()
    dims, coarse_dims = (*lead, *names), (*(f"coarse_{d}" for d in lead), *coarse)
    if times:
        when = xr.date_range(
            "2001-01-15",
            periods=times,
            freq="D",
            calendar=calendar,
            use_cftime=calendar != "standard",
        )
        fine["time"], coarse["coarse_time"] = ("time", when), ("coarse_time", when)

    def cut(values):
        return values if times else values[..., 0, :, :]

    residual = observed - means
    found = residual[np.isfinite(residual)]
    facts = {
        "target": "t2m",
        "units": "degC",
        "long_name": text,
        "covariates": ["altitude", "distance to sea"],
        "mediators": ["latitude", "longitude", "pressure"],
        "model": "cmp",
        "mediation": "shrinkage, with uncertainty",
        "distribution": distribution,
        "bounds": [0.0, None] if distribution != "normal" else [None, None],
        "options": {"n_restarts": 4, "seed": 0, "learn": True},
        "understood": [["coarse grid", "5 x 7 cells of 1 degree"], ["fine grid", "20 x 28 cells"]],
        "parameters": [
            {"name": "kernel.lengthscale", "value": [0.4, 1.25], "unit": "", "meaning": "reach"},
            {"name": "noise_std", "value": 0.11, "unit": "degC", "meaning": "of an observation"},
        ],
        "fit": {
            "converged": True,
            "iterations": 83,
            "log_evidence": -41.25,
            "notes": ["a length scale is at the end of its prior"],
            "details": {"restarts that agree": 3},
        },
        "comparison": None,
        "residuals": {
            "n": int(found.size),
            "mean": float(found.mean()),
            "rmse": float(np.sqrt(np.mean(found**2))),
            "largest": float(found[np.argmax(np.abs(found))]),
        },
        "timings": {"read": 0.4, "fit": 12.31, "predict": 2.0},
        "versions": {"deconditional": "0.1.0", "jax": "0.6.2"},
    } | changes
    about = {"units": "degC", "long_name": text}
    variables = {
        "mean": (dims, cut(mean), about),
        "std": (dims, cut(np.where(missing, np.nan, std)), about),
        "coarse_observed": (coarse_dims, cut(observed), about),
        "coarse_mean": (coarse_dims, cut(means), about),
        "coarse_residual": (coarse_dims, cut(residual), about),
        "coarse_role": (
            coarse_dims[-2:],
            role.astype("int8"),
            {
                "flag_values": np.arange(4, dtype="int8"),
                "flag_meanings": "nothing covariates_only target_only both",
            },
        ),
    }
    if samples:
        variables["samples"] = (("sample", *dims), cut(np.where(missing, np.nan, draws)), about)
    if distribution == "rectified normal":
        variables["latent_mean"] = (dims, cut(mean - 0.2), about)
        variables["latent_std"] = (dims, cut(np.where(missing, np.nan, std)), about)
    attrs = {
        "Conventions": "CF-1.11",
        "title": f"Downscaled {text}",
        "history": "2026-01-01 deconditional downscale coarse.nc fine.nc",
        "source": "deconditional 0.1.0",
        "deconditional": json.dumps(facts),
    }
    result = xr.Dataset(variables, {**fine, **coarse}, attrs)
    true = xr.DataArray(cut(truth), {d: result[d] for d in dims}, dims, "t2m", {"units": "degC"})
    return result, true


COMPARISON = {
    "columns": ["model", "CRPS", "RMSE"],
    "rows": [["centroid", 0.9, 1.7], ["cmp", 0.4, 0.8]],
    "chosen": "cmp",
    "folds": "5 blocks",
    "pit": list(np.linspace(0.01, 0.99, 40)),
}


# ---------------------------------------------------------------------- reading a page


class Page(HTMLParser):
    """Tags with their attributes, text by section, tables as lists of rows."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.texts, self.tables = [], {"top": ""}, {}
        self._section, self._rows, self._cell, self._caption = "top", None, None, None
        self.feed(Path(path).read_text(encoding="utf-8").replace("\u00a0", " "))
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        if tag == "section":
            self._section = attrs["id"]
            self.texts[self._section] = ""
        elif tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        elif tag == "caption":
            self._caption = ""

    def handle_endtag(self, tag):
        if tag == "caption":
            self.tables[self._caption] = self._rows
            self._caption = None
        elif tag == "table":
            self._rows = None

    def handle_data(self, data):
        if self.lasttag != "style":
            self.texts[self._section] += data
        if self._caption is not None:
            self._caption += data
        elif self._rows and self._rows[-1]:
            self._rows[-1][-1] += data.strip("\n")

    def all(self, wanted):
        return [attrs for tag, attrs in self.tags if tag == wanted]

    @property
    def alts(self):
        return [attrs["alt"] for attrs in self.all("img")]

    def table(self, caption):
        """Rows of the table whose caption starts so, by their first cell."""
        rows = next(rows for name, rows in self.tables.items() if name.startswith(caption))
        return {row[0]: row[1:] for row in rows}


def page_of(result, folder, truth=None):
    return Page(report.write_report(result, folder / "report.html", truth))


# ---------------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    result, truth = fabricate()
    return result, truth, page_of(result, tmp_path_factory.mktemp("scored"), truth)


@pytest.fixture
def undrawn(monkeypatch):
    """Pages whose words are what a test is about: figures are made and not drawn."""
    empty = b"\x89PNG" + bytes(12) + bytes([0, 0, 0, 1]) * 2
    monkeypatch.setattr(plots, "png", lambda figure, dpi=150: empty)


def test_sections_are_in_order_and_the_contents_lead_to_them(scored):
    *_, page = scored
    anchors = [attrs["id"] for attrs in page.all("section")]
    assert anchors == [
        "posterior",
        "asked",
        "coverage",
        "calibration",
        "agreement",
        "parameters",
        "comparison",
        "provenance",
    ]
    assert [attrs["href"] for attrs in page.all("a")] == [f"#{anchor}" for anchor in anchors]
    assert "2-metre temperature" in page.texts["top"]


def test_page_needs_nothing_from_outside(scored):
    *_, page = scored
    used = {tag for tag, _ in page.tags}
    assert not used & {"script", "iframe", "object", "embed", "form", "base", "audio", "video"}
    for tag, attrs in page.tags:
        assert not [name for name in attrs if name.startswith("on")]
        for name in ("src", "href", "srcset", "action"):
            assert attrs.get(name, "#").startswith(("#", "data:")), (tag, attrs)
    assert "url(" not in (text := str(page.tags)) and "http://" not in text


def test_pictures_are_png_of_the_stated_size_with_words_and_numbers(scored):
    *_, page = scored
    pictures = page.all("img")
    assert len(pictures) == 9
    assert len(set(page.alts)) == len(pictures)
    for picture in pictures:
        png = base64.b64decode(picture["src"].removeprefix("data:image/png;base64,"))
        assert png.startswith(b"\x89PNG")
        size = [int.from_bytes(png[at : at + 4], "big") for at in (16, 20)]
        assert size == [int(picture["width"]), int(picture["height"])]
        assert len(picture["alt"]) > 30
        assert re.search(r"\d", picture["alt"])


def test_summary_and_scores_are_those_of_the_arrays(scored):
    result, truth, page = scored
    mean, std = result["mean"].values, result["std"].values
    known = np.isfinite(mean)
    error = (mean - truth.values)[known]
    inside = {
        level: np.mean(np.abs(error) <= stats.norm.ppf(0.5 + level / 2) * std[known])
        for level in (0.5, 0.95)
    }
    rmse, bias = np.sqrt(np.mean(error**2)), error.mean()
    table = page.table("Scores against the truth, over 544 values")
    assert table["RMSE"][0] == f"{rmse:.4g} degC"
    assert table["MAE"][0] == f"{np.abs(error).mean():.4g} degC"
    assert table["bias"][0] == f"{bias:.4g} degC"
    assert table["coverage of 95%"][0] == f"{100 * inside[0.95]:.1f}%"
    assert table["coverage of 50%"][0] == f"{100 * inside[0.5]:.1f}%"
    top = page.texts["posterior"]
    assert "in 544 of 560 fine cells" in top
    assert "covariates of 15 coarse cells (bags)" in top
    assert "observations in 20 coarse cells; 5 cells have both" in top
    facts = json.loads(result.attrs["deconditional"])
    assert f"by {facts['residuals']['rmse']:.3g} degC (root mean square)" in top
    assert f"squared error of {rmse:.3g} degC and a bias of {bias:.3g} degC" in top
    assert f"hold {100 * inside[0.95]:.1f}% of the truth" in top


def test_alternative_texts_tell_the_key_numbers(scored):
    result, _, page = scored
    mean = result["mean"].values[np.isfinite(result["mean"].values)]
    width = 2 * stats.norm.ppf(0.975) * result["std"].values[np.isfinite(result["std"].values)]
    for values, title in ((mean, "posterior mean"), (width, "width of the 95% interval")):
        wanted = (
            f"{title}: from {values.min():.4g} to {values.max():.4g} degC, mean {values.mean():.4g}"
        )
        assert any(wanted in alt for alt in page.alts), wanted
    assert any(
        "gives: nothing 5, covariates only 10, target only 15, both 5." in a for a in page.alts
    )
    assert any("544 of 560 cells with a value" in alt for alt in page.alts)
    assert any("20 of 35 cells with a value" in alt for alt in page.alts)  # the coarse input


def test_tables_repeat_the_file(scored):
    result, _, page = scored
    facts = json.loads(result.attrs["deconditional"])
    request = page.table("The request")
    assert request["fine covariates"] == ["altitude, distance to sea"]
    assert request["model"] == ["cmp"]
    assert "bounds" not in request
    assert page.table("Options") == {"n_restarts": ["4"], "seed": ["0"], "learn": ["yes"]}
    assert result.attrs["history"] in page.texts["asked"]
    assert page.table("How the files")["fine grid"] == ["20 x 28 cells"]
    residuals = facts["residuals"]
    agreement = page.table(f"Residuals over {residuals['n']} coarse cells")
    assert agreement["largest in size"] == [f"{residuals['largest']:.4g} degC"]
    assert page.table("Hyper-parameters")["kernel.lengthscale"] == ["0.4, 1.25", "", "reach"]
    fit = page.table("Fit")
    assert (fit["converged"], fit["log evidence"]) == (["yes"], ["-41.25"])
    assert fit["restarts that agree"] == ["3"]
    assert "Warning: a length scale is at the end" in page.texts["posterior"]
    assert page.table("Time taken")["fit"] == ["12.3 s"]
    assert page.table("Versions")["jax"] == ["0.6.2"]
    assert "not compared" in page.texts["comparison"]


def test_residuals_are_computed_where_they_are_not_stored(tmp_path, undrawn):
    result, _ = fabricate(residuals=None)
    found = result["coarse_residual"].values
    found = found[np.isfinite(found)]
    page = page_of(result, tmp_path)
    table = page.table(f"Residuals over {found.size} coarse cells")
    assert table["root mean square"] == [f"{np.sqrt(np.mean(found**2)):.4g} degC"]
    assert float(table["largest in size"][0].split()[0]) == pytest.approx(
        max(found, key=abs), rel=1e-3
    )


def test_comparison_marks_the_chosen_model_and_serves_calibration(tmp_path, undrawn):
    result, _ = fabricate(comparison=COMPARISON)
    page = page_of(result, tmp_path)
    assert page.table("Cross-validation")["cmp ✓ chosen"] == ["0.4", "0.8"]
    assert [a for a in page.all("tr") if a.get("class") == "marked"] == [{"class": "marked"}]
    assert "5 blocks" in page.texts["comparison"]
    assert "40 coarse observations" in page.texts["calibration"]
    # 40 values evenly from 0.01 to 0.99: 20 of them lie between 0.25 and 0.75.
    assert any("50% intervals hold 50.0%" in alt for alt in page.alts)


def test_a_comparison_without_probabilities_serves_no_calibration(tmp_path, undrawn):
    result, _ = fabricate(comparison=COMPARISON | {"pit": None})
    page = page_of(result, tmp_path)
    assert "nothing to hold the intervals against" in page.texts["calibration"]


def test_skill_and_doubt_come_first(tmp_path, undrawn):
    doubt = "bilinear interpolation would have been as good: RMSE 1 against 2 K."
    told = {"skill": "RMSE 2 K, bilinear interpolation 1", "doubt": doubt}
    page = page_of(fabricate(comparison=COMPARISON | told)[0], tmp_path)
    assert f"Warning: {doubt}" in page.texts["posterior"]
    assert told["skill"] in page.texts["posterior"]


def test_a_fit_that_did_not_converge_is_said_so(tmp_path, undrawn):
    result, _ = fabricate(fit={"converged": False})
    page = page_of(result, tmp_path)
    assert "Warning: The fit did not converge" in page.texts["posterior"]


@pytest.mark.parametrize(
    ("roles", "words"),
    [((1, 2), "unmatched"), ((0, 3), "are matched."), ((1, 3), "are matched.")],
)
def test_matching_is_told_from_the_roles(roles, words):
    result, _ = fabricate()
    result["coarse_role"].values[:] = np.resize(roles, result["coarse_role"].shape)
    assert words in summary(read_result(result)).text


@pytest.mark.parametrize("residuals", [{"n": 0}, {"n": 3, "rmse": float("nan")}])
def test_summary_leaves_out_what_is_unknown(residuals):
    result, _ = fabricate(residuals=residuals)
    assert "root mean square" not in summary(read_result(result)).text


@pytest.mark.parametrize("calendar", ["standard", "noleap"])
def test_time(tmp_path, calendar, request):
    if calendar != "standard":  # whose axis has dates to be drawn
        request.getfixturevalue("undrawn")
    result, truth = fabricate(times=3, calendar=calendar)
    path = tmp_path / "result.nc"
    result.to_netcdf(path)
    page = page_of(open_fields(path, "result"), tmp_path, truth)
    assert "in 1\u202f632 of 1\u202f680 values" in page.texts["posterior"]
    assert "first of 3 times, 2001-01-15." in page.texts["posterior"]
    weights = np.cos(np.deg2rad(result["lat"].values))[:, None] * np.ones(28)
    last = result["mean"].values[-1]
    known = np.isfinite(last)
    area_mean = np.average(last[known], weights=weights[known])
    assert any(f"{area_mean:.4g} degC at the last" in alt for alt in page.alts)
    first = result["mean"].values[0]
    assert any(f"posterior mean: from {np.nanmin(first):.4g} to" in alt for alt in page.alts)


@pytest.mark.parametrize("distribution", ["lognormal", "rectified normal"])
def test_skewed_marginals(tmp_path, distribution, undrawn):
    result, truth = fabricate(distribution=distribution)
    page = page_of(result, tmp_path, truth)
    mean, std = (result[name].values for name in ("mean", "std"))
    known = np.isfinite(mean)
    if distribution == "lognormal":
        sigma = np.sqrt(np.log(1 + (std / mean) ** 2))
        law = stats.lognorm(sigma, scale=mean / np.sqrt(1 + (std / mean) ** 2))
        low, high = law.ppf(0.025), law.ppf(0.975)
    else:
        low, high = (
            np.maximum(stats.norm.ppf(q, result["latent_mean"], result["latent_std"]), 0.0)
            for q in (0.025, 0.975)
        )
        assert "A bound has a probability" in page.texts["calibration"]
    inside = np.mean(((low <= truth) & (truth <= high)).values[known])
    scores = page.table("Scores against the truth")
    assert scores["coverage of 95%"][0] == f"{100 * inside:.1f}%"
    width = (high - low)[known]
    assert any(f"interval: from {width.min():.4g} to {width.max():.4g}" in a for a in page.alts)
    assert page.table("The request")["bounds"] == ["lower 0, upper none"]


@pytest.mark.parametrize(("model", "word"), [("mediated", "a mixture, taken"), ("cmp", "normal")])
def test_a_mixture_is_not_called_normal(model, word):
    result = SimpleNamespace(distribution="normal", facts={"model": model})
    assert sections._distribution(result).startswith(word)


def test_projected_grid_is_drawn_in_kilometres(tmp_path, undrawn):
    result, truth = fabricate("projected", samples=0)
    page_of(result, tmp_path, truth)
    drawn = plane(result["mean"])
    assert (drawn.unit, drawn.grid.spherical, drawn.aspect) == ("km", False, 1.0)
    assert drawn.names == ("x (km)", "y (km)")
    assert drawn.x_edges[0] == pytest.approx(407.5)


def test_a_result_without_any_prediction_still_has_a_page(tmp_path):
    result, truth = fabricate(residuals=None)
    empty = result.assign({name: result[name] * np.nan for name in ("mean", "std", "samples")})
    empty["mean"].attrs.clear()
    page = page_of(empty.drop_vars(["coarse_residual", "coarse_mean"]), tmp_path)
    assert "in 0 of 560 fine cells" in page.texts["posterior"]
    assert "no residuals" in page.texts["agreement"]
    with pytest.raises(UsageError, match="no value in any cell that was predicted"):
        page_of(empty, tmp_path, truth)


# ---------------------------------------------------------------------- texts of figures


@pytest.mark.parametrize("text", [r"$\frac$", "$a$ and $b$", r"\$5", "a\nb"])
def test_texts_of_figures_are_no_formulas(text):
    assert not is_math_text(plots.plain_text(text))
    assert plots.png(maps.field_map(maps.Panel(np.eye(3), text, text))).startswith(b"\x89PNG")


def test_letters_that_the_font_lacks_do_not_stop_a_figure():
    assert plots.png(maps.field_map(maps.Panel(np.eye(3), "降水量"))).startswith(b"\x89PNG")


# ---------------------------------------------------------------------- files and truth


def test_a_result_comes_back_from_its_file(tmp_path):
    result, _ = fabricate()
    result["mean"].attrs["units"] = "days"  # must not become a span of time
    result.to_netcdf(tmp_path / "result.nc")
    loaded = read_result(open_fields(tmp_path / "result.nc", "result")).data
    np.testing.assert_array_equal(loaded["mean"], result["mean"])
    assert loaded["mean"].dtype == float


def broken(kind):
    result, _ = fabricate(samples=0)
    if kind == "no std":
        return result.drop_vars("std")
    if kind == "no attribute":
        return result.drop_attrs()
    if kind == "damaged":
        return result.assign_attrs(deconditional="{")
    if kind == "no object":
        return result.assign_attrs(deconditional="[1]")
    return result.assign_attrs(deconditional=json.dumps({"distribution": "gamma"}))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no std", "no result of deconditional downscale: it has no variable 'std'; name a file"),
        ("no attribute", "it has no attribute 'deconditional'"),
        ("damaged", "the attribute 'deconditional' of .*result.nc' is damaged"),
        ("no object", "is damaged"),
        ("strange", "of the kind 'gamma'; this version knows normal, lognormal"),
    ],
)
def test_other_files_are_refused(tmp_path, kind, message):
    broken(kind).to_netcdf(tmp_path / "result.nc")
    with pytest.raises(UsageError, match=message):
        read_result(open_fields(tmp_path / "result.nc", "result"))


def test_output_must_be_a_file(tmp_path):
    result, _ = fabricate(samples=0)
    with pytest.raises(UsageError, match="is a folder; name a file"):
        report.write_report(result, tmp_path)
    written = report.write_report(result, tmp_path / "new" / "report.html")
    assert [path.name for path in written.parent.iterdir()] == ["report.html"]


def reordered(truth, how):
    if how == "north last":
        return truth.sortby("lat")
    if how == "transposed":
        return truth.transpose("lon", "lat")
    if how == "from -180":
        return truth.assign_coords(lon=(truth["lon"] + 180) % 360 - 180).sortby("lon")
    if how == "single precision":
        return truth.assign_coords(lat=truth["lat"].astype("f4"), lon=truth["lon"].astype("f4"))
    if how == "larger":
        return truth.pad(lat=2, constant_values=9.0).assign_coords(
            lat=52.5 - 0.25 * np.arange(truth.sizes["lat"] + 4)
        )
    if how == "one time":
        return truth.expand_dims(time=1)
    if how == "on two dimensions":
        places = dict(
            zip(("nav_lat", "nav_lon"), xr.broadcast(truth["lat"], truth["lon"]), strict=True)
        )
        bare = truth.assign_coords({n: v.drop_vars(v.coords) for n, v in places.items()})
        return bare.drop_vars(["lat", "lon"]).rename(lat="j", lon="i")
    return truth.to_dataset(name="t2m").assign(other=truth)


@pytest.mark.parametrize(
    "how",
    [
        *("north last", "transposed", "from -180", "single precision", "larger", "one time"),
        *("on two dimensions", "dataset"),
    ],
)
def test_truth_is_aligned_by_coordinates(scored, how):
    result, truth, _ = scored
    found = align_truth(reordered(truth, how), result["mean"], "t2m")
    np.testing.assert_array_equal(found, truth)
    assert found.dims == ("lat", "lon")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.assign_coords(lat=t["lat"] + 0.1),
            "no cell at lat = 52, .* one of 560 of 560",
        ),
        (lambda t: t.isel(lon=slice(3, None)), "no cell at lat = 52, lon = 352, one of 60 of 560"),
        (lambda t: t.to_dataset(name="tas"), "no variable 't2m'.* its variables are: tas"),
        (lambda t: t.expand_dims(time=[1, 2]), r"the truth has 2 time\(s\), the result 1"),
        (lambda t: t.drop_vars("lat"), "true data: no latitude"),
    ],
)
def test_truth_on_another_grid_is_refused(scored, tmp_path, change, message):
    result, truth, _ = scored
    with pytest.raises(UsageError, match=message):
        report.write_report(result, tmp_path / "report.html", change(truth))
    assert not list(tmp_path.iterdir())


def test_truth_at_another_time_is_refused(tmp_path):
    result, truth = fabricate(times=2, samples=0)
    later = truth.assign_coords(time=truth["time"] + np.timedelta64(1, "D"))
    with pytest.raises(UsageError, match=r"no value at time = 2001-01-15.*one of 1 of 2"):
        report.write_report(result, tmp_path / "report.html", later)


# ---------------------------------------------------------------------- grids


def field(values, y, x, names=("lat", "lon")):
    return xr.DataArray(values, {names[0]: y, names[1]: x}, names)


def test_maps_put_values_where_their_coordinates_are():
    values = np.arange(6.0).reshape(2, 3)
    south_first = plane(field(values, [10.0, 20.0], [350.0, 0.0, 20.0]))
    north_first = plane(field(values[::-1], [20.0, 10.0], [350.0, 0.0, 20.0]))
    turned = plane(field(values, [10.0, 20.0], [350.0, 0.0, 20.0]).transpose("lon", "lat"))
    for drawn in (south_first, north_first, turned):
        np.testing.assert_array_equal(drawn.values, values)
        np.testing.assert_array_equal(drawn.y_edges, [5.0, 15.0, 25.0])
        np.testing.assert_array_equal(drawn.x_edges, [345.0, 355.0, 370.0, 390.0])
    mesh = maps.field_map(
        maps.Panel(field(values[::-1], [20.0, 10.0], [350.0, 0.0, 20.0]), "")
    ).axes[0]
    corners = mesh.collections[0].get_coordinates()
    np.testing.assert_array_equal(corners[0, 0], [345.0, 5.0])
    np.testing.assert_array_equal(corners[-1, -1], [390.0, 25.0])
    np.testing.assert_array_equal(mesh.collections[0].get_array(), values)


def test_latitudes_end_at_the_poles():
    drawn = plane(field(np.zeros((3, 2)), [-90.0, 0.0, 90.0], [0.0, 180.0]))
    assert (drawn.y_edges[0], drawn.y_edges[-1]) == (-90.0, 90.0)


def test_long_axes_are_thinned():
    values = np.tile(np.arange(2500.0), (2, 1))
    drawn = maps.field_map(maps.Panel(values, "")).axes[0].collections[0]
    assert drawn.get_array().shape == (2, 834)
    corners = drawn.get_coordinates()
    np.testing.assert_array_equal(corners[0, :3, 0], [-0.5, 2.5, 5.5])
    assert corners[0, -1, 0] == 2499.5
    np.testing.assert_array_equal(drawn.get_array()[0, :2], [1.0, 4.0])


ROTATED = {
    "rlon": {"standard_name": "grid_longitude", "units": "degrees"},
    "rlat": {"standard_name": "grid_latitude", "units": "degrees"},
}


@pytest.mark.parametrize(
    ("dims", "attrs", "wanted"),
    [
        (("x", "y"), {}, ("y", "x")),
        (("a", "b"), {"a": {"axis": "X"}, "b": {"axis": "Y"}}, ("b", "a")),
        (("i", "j"), {}, ("j", "i")),  # as models of the ocean have it
        (("u", "v"), {}, ("u", "v")),
        (("rlon", "rlat"), ROTATED, ("rlat", "rlon")),
    ],
)
def test_axes_are_told_apart(dims, attrs, wanted):
    axes = {dim: (dim, np.arange(3), attrs.get(dim, {})) for dim in dims}
    array = xr.DataArray(np.zeros((3, 3)), axes, dims)
    grid = grid_of(array)
    assert (grid.y.name, grid.x.name) == wanted
    assert plane(array).grid.spherical == (attrs is ROTATED)


def test_area_weights_are_areas():
    # Between latitudes a and b a zone has an area proportional to sin b - sin a.
    lat = np.arange(40.5, 60.0)
    weights = area_weights(field(np.zeros((20, 3)), lat, [0.0, 1.0, 3.0]))
    exact = np.sin(np.deg2rad(lat + 0.5)) - np.sin(np.deg2rad(lat - 0.5))
    np.testing.assert_allclose(weights[:, 0] / weights[0, 0], exact / exact[0], rtol=1e-4)
    np.testing.assert_allclose(weights[0] / weights[0, 0], [1.0, 1.5, 2.0])


# ---------------------------------------------------------------------- figures


def test_demo_maps_share_a_scale(scored):
    result, truth, _ = scored
    error = result["mean"] - truth
    figure = maps.demo_maps(
        truth, result["coarse_observed"], result["mean"], 3.92 * result["std"], error, "°C", "hills"
    )
    meshes = [panel.collections[0] for panel in figure.axes[:5]]
    limits = [mesh.get_clim() for mesh in meshes]
    low = min(truth.min(), result["mean"].min(), result["coarse_observed"].min())
    assert limits[0] == limits[1] == limits[2]
    assert limits[0][0] == pytest.approx(float(low))
    assert limits[3][0] == 0.0
    assert limits[4][0] == -limits[4][1] == -float(np.abs(error).max())
    assert meshes[4].get_cmap().name == DIVERGING
    assert meshes[1].get_array().mask.sum() == 15
    assert plots.png(figure, dpi=60).startswith(b"\x89PNG")


def test_values_beyond_the_scale_are_marked_on_it():
    figure = maps.field_map(maps.Panel(np.array([[0.0, 5.0]]), "", limits=(0.0, 1.0)))
    assert figure.axes[0].collections[0].colorbar.extend == "max"


def test_numbers_are_written_for_reading():
    assert [number(v) for v in (1234567, 12345.6, 1e9, -0.00001234, None, float("inf"))] == [
        "1\u202f234\u202f567",
        "12\u202f346",
        "1e+09",
        "-1.234e-05",
        "–",
        "–",
    ]
