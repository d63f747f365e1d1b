"""From two datasets to bags and observations: weights, times, masks, and what cannot be paired."""

import cftime
import numpy as np
import pytest

from deconditional.datasets import coarsen, split_cells, synthetic_fields
from deconditional.errors import UsageError
from made_up_grids import on_land, projected_fields

xr = pytest.importorskip("xarray")
pytest.importorskip("cf_xarray")

from deconditional.fields.question import Question  # noqa: E402
from pairs import pair  # noqa: E402

BLOCK = (3, 4)
COVARIATES, MEDIATORS = ("altitude", "cloud"), ("water_vapour",)
DAYS = ["2000-01-01", "2000-01-02", "2000-01-03", "2000-01-04"]


def ask(**changes):
    return Question(
        **({"target": "tas", "covariates": COVARIATES, "mediators": MEDIATORS} | changes)
    )


def example(matched=0.5, seed=0, projected=False, **options):
    kind = projected_fields if projected else synthetic_fields
    fields = kind(12, 24, seed=seed, **options)
    return fields, split_cells(fields, "tas", COVARIATES, MEDIATORS, BLOCK, matched=matched)


def plain(values, lat, lon, name="a"):
    """A dataset without attributes."""
    return xr.Dataset({name: (("lat", "lon"), values)}, coords={"lat": lat, "lon": lon})


def told(pairing, label):
    return dict(pairing.understood)[label]


# --- bags and weights ---------------------------------------------------------------------------


def test_weights_are_shares_of_area():
    """Cells of 10 degrees in cells of 15, not nested: pieces of 5 degrees lie in one of each."""
    fine_lat, fine_lon = np.arange(-25.0, 26.0, 10.0), np.arange(-20.0, 41.0, 10.0)
    coarse_lat, coarse_lon = np.arange(-22.5, 23.0, 15.0), np.arange(-17.5, 43.0, 15.0)
    rng = np.random.default_rng(0)
    fine = plain(rng.normal(size=(6, 7)), fine_lat, fine_lon)
    coarse = plain(rng.normal(size=(4, 5)), coarse_lat, coarse_lon, "z")
    pairing = pair(fine, coarse, Question("z", ("a",), (), min_cover=0.0))
    assert pairing.matching == "matched" and pairing.bags.n_bags == 20

    expected = np.zeros((6, 7, 4, 5))
    for south in np.arange(-30.0, 30.0, 5.0):
        area = np.sin(np.radians(south + 5.0)) - np.sin(np.radians(south))
        for west in np.arange(-25.0, 45.0, 5.0):
            place = [
                int(np.abs(centres - middle).argmin())
                for centres, middle in (
                    (fine_lat, south + 2.5),
                    (fine_lon, west + 2.5),
                    (coarse_lat, south + 2.5),
                    (coarse_lon, west + 2.5),
                )
            ]
            expected[*place] += area * np.radians(5.0)
    expected = expected.reshape(42, 20)
    np.testing.assert_allclose(pairing.cells.areas.toarray(), expected, atol=1e-15)
    found = np.zeros((42, 20))
    found[pairing.bags.point, pairing.bags.bag] = pairing.bags.weights
    np.testing.assert_allclose(found, expected / expected.sum(0), atol=1e-14)
    np.testing.assert_array_equal(
        pairing.bags.points[:, 3], fine.a.values.ravel()[pairing.bags.point]
    )
    np.testing.assert_array_equal(pairing.bags.sizes, (expected > 0).sum(0))


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("land_fraction", [1.0, 0.5])
def test_bag_means_are_block_means(projected, land_fraction):
    fields = (projected_fields if projected else synthetic_fields)(12, 24, seed=3)
    if land_fraction < 1.0:
        fields = on_land(fields, land_fraction)
    coarse = coarsen(fields, BLOCK)
    pairing = pair(fields, coarse, ask(min_cover=0.0))
    n = pairing.n_position
    assert n == (2 if projected else 3)
    means = pairing.bags.means()
    for k, name in enumerate(COVARIATES):
        expected = coarse[name].values.ravel()
        np.testing.assert_array_equal(pairing.bag_unit, np.flatnonzero(np.isfinite(expected)))
        np.testing.assert_allclose(means[:, n + k], expected[pairing.bag_unit], rtol=1e-12)
    np.testing.assert_allclose(pairing.z, coarse.tas.values[coarse.tas.notnull()], rtol=0)
    assert not pairing.bags.share_points


def test_positions_and_mediators_are_columns():
    _, data = example()
    pairing = pair(data.fine, data.coarse, ask())
    lat, lon = (
        np.radians(c.ravel()) for c in np.meshgrid(data.coarse.lat, data.coarse.lon, indexing="ij")
    )
    where = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], 1)
    vapour = data.coarse.water_vapour.values.ravel()
    for mediator, unit in (
        (pairing.bag_mediator, pairing.bag_unit),
        (pairing.mediator, pairing.observed_unit),
    ):
        np.testing.assert_allclose(mediator, np.column_stack([where, vapour])[unit], atol=1e-14)
    without = pair(data.fine, data.coarse, ask(position=False))
    np.testing.assert_array_equal(without.bags.points, pairing.bags.points[:, 3:])
    np.testing.assert_array_equal(without.bag_mediator, pairing.bag_mediator[:, 3:])
    assert without.n_position == 0 and told(without, "mediators").startswith("water_vapour,")


@pytest.mark.parametrize(
    ("matched", "word"), [(0.0, "unmatched"), (0.5, "partly matched"), (1.0, "matched")]
)
def test_roles_follow_from_missing_values(matched, word):
    _, data = example(matched)
    pairing = pair(data.fine, data.coarse, ask())
    given = data.fine.altitude.notnull().values.reshape(4, 3, 6, 4).all((1, 3)).ravel()
    target = data.coarse.tas.values.ravel()
    assert pairing.matching == word
    np.testing.assert_array_equal(pairing.bag_unit, np.flatnonzero(given))
    np.testing.assert_array_equal(pairing.observed_unit, np.flatnonzero(np.isfinite(target)))
    np.testing.assert_array_equal(pairing.z, target[np.isfinite(target)])
    np.testing.assert_array_equal(pairing.target, target)
    np.testing.assert_array_equal(pairing.own_bag >= 0, given[pairing.observed_unit])
    own = pairing.own_bag >= 0
    np.testing.assert_array_equal(
        pairing.bag_unit[pairing.own_bag[own]], pairing.observed_unit[own]
    )
    both = int((given & np.isfinite(target)).sum())
    assert told(pairing, "matching").startswith(f"{both} observations have a bag of their own")


def test_position_alone_can_be_the_covariate():
    _, data = example(1.0)
    everywhere = data.everywhere.reset_coords(["lat_bnds", "lon_bnds"])[
        ["lat_bnds", "lon_bnds", "cloud"]
    ]
    later = everywhere.expand_dims(time=np.array(DAYS[:2], "M8[ns]"))
    for fine in (
        everywhere,
        later.assign(lat_bnds=everywhere.lat_bnds, lon_bnds=everywhere.lon_bnds),
    ):
        pairing = pair(fine, data.coarse, ask(covariates=(), mediators=()))
        assert pairing.bags.points.shape == (12 * 24, 3) and pairing.times is None
        np.testing.assert_allclose(np.linalg.norm(pairing.bags.points, axis=1), 1.0)


# --- cover and mask -----------------------------------------------------------------------------


def cover_of(fields, share=None):
    """Share of every coarse cell, or of its unmasked part, that has covariates."""
    known = fields.altitude.notnull().values.astype(float)
    edges = np.linspace(-90.0, 90.0, 13)
    area = np.diff(np.sin(np.radians(edges)))[:, None] * (np.ones(24) if share is None else share)
    blocks = [v.reshape(4, 3, 6, 4).sum((1, 3)).ravel() for v in (area * known, area * np.ones(24))]
    return np.divide(*blocks, out=np.zeros(24), where=blocks[1] > 0)


@pytest.mark.parametrize("least", [0.0, 0.3, 0.6, 1.0])
def test_cells_with_little_cover_are_no_bags(least):
    fields = on_land(synthetic_fields(12, 24, seed=3), 0.5)
    pairing = pair(fields, coarsen(fields, BLOCK), ask(min_cover=least))
    cover = cover_of(fields)
    assert np.abs(cover - least)[(cover > 0) & (cover < 1)].min() > 0.002
    enough = (cover > 0) & (cover >= least - 1e-9)
    np.testing.assert_array_equal(pairing.bag_unit, np.flatnonzero(enough))
    left_out = int((cover > 0).sum() - enough.sum())
    if left_out:
        assert told(pairing, "left out").startswith(f"{left_out} cells with covariates over less")
    else:
        assert "left out" not in dict(pairing.understood)


def test_a_mask_weighs_cells():
    fields, _ = example()
    rng = np.random.default_rng(1)
    share = rng.uniform(0.0, 1.0, (12, 24))
    share[:3, :4] = 0.0  # a whole coarse cell
    share[3, 5:9] = 0.0
    masked = fields.assign(land=(("lat", "lon"), share))
    pairing = pair(masked, coarsen(fields, BLOCK), ask(mask="land"))
    assert pairing.bags.n_bags == 23 and 0 not in pairing.bag_unit
    area = np.diff(np.sin(np.radians(np.linspace(-90, 90, 13))))[:, None] * share * np.radians(15.0)
    blocks = area.reshape(4, 3, 6, 4)
    left = pairing.coarse.areas - pairing.cells.masked
    np.testing.assert_allclose(left, blocks.sum((1, 3)).ravel(), atol=1e-14)
    cloud = fields.cloud.values.reshape(4, 3, 6, 4)
    expected = ((blocks * cloud).sum((1, 3)).ravel()[1:]) / blocks.sum((1, 3)).ravel()[1:]
    np.testing.assert_allclose(pairing.bags.means()[:, 4], expected, rtol=1e-12)
    assert pairing.bags.n_points == np.count_nonzero(share)


def test_the_cover_of_a_masked_cell_is_that_of_its_unmasked_part():
    fields = on_land(synthetic_fields(12, 24, seed=3), 0.5)
    share = np.random.default_rng(2).integers(0, 2, (12, 24)).astype(float)
    share[share == 0] = np.where(np.arange((share == 0).sum()) % 2, np.nan, 0.0)
    pairing = pair(
        fields.assign(land=(("lat", "lon"), share)), coarsen(fields, BLOCK), ask(mask="land")
    )
    cover = cover_of(fields, np.nan_to_num(share))
    np.testing.assert_array_equal(pairing.bag_unit, np.flatnonzero(cover >= 0.5))


def test_a_mask_says_nothing_of_what_lies_beyond_the_fine_grid():
    fields, _ = example()
    coarse = coarsen(fields, BLOCK)
    region = fields.assign(land=fields.cloud * 0 + 1.0).isel(lon=slice(3, 21))
    cut = pair(region, coarse, ask(mask="land"))
    assert set(np.unique(cut.bag_unit % 6)) == {1, 2, 3, 4}  # the outer columns are covered by 1/4
    left = cut.coarse.areas - cut.cells.masked
    share = np.asarray(cut.cells.areas.sum(0)) / left
    np.testing.assert_allclose(share[:6], [0.25, 1, 1, 1, 1, 0.25])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (100.0, r"the mask 'land' runs from 100 to 100; .* \(divide percentages by 100\)"),
        (-0.5, "the mask 'land' runs from -0.5"),
        (0.0, "no fine cell has all covariates"),
    ],
)
def test_masks_that_cannot_be(values, message):
    fields, data = example()
    fine = data.fine.assign(land=fields.cloud * 0 + values)
    with pytest.raises(UsageError, match=message):
        pair(fine, data.coarse, ask(mask="land"))


def test_masks_are_shares_to_a_rounding_and_do_not_change():
    fields, data = example()
    land = (fields.cloud * 0 + 1.0).astype("float32") * np.float32(1 + 2e-7)
    pairing = pair(data.fine.assign(land=land), data.coarse, ask(mask="land"))
    plain = pair(data.fine, data.coarse, ask())
    np.testing.assert_array_equal(pairing.bags.weights, plain.bags.weights)
    days = land.expand_dims(time=np.array(DAYS[:2], "M8[ns]"))
    with pytest.raises(UsageError, match=r"'land' has 2 times, .*ds\['land'\].isel\(time=0\)"):
        pair(data.fine.assign(land=days), data.coarse, ask(mask="land"))
    one = pair(data.fine.assign(land=days.isel(time=[0])), data.coarse, ask(mask="land"))
    np.testing.assert_array_equal(one.bags.weights, plain.bags.weights)


# --- times --------------------------------------------------------------------------------------


def in_time(fine_days, coarse_days, matched=0.5):
    """Fine data at some days, coarse data at others."""
    _, data = example(matched, times=DAYS)
    return data.fine.isel(time=fine_days), data.coarse.isel(time=coarse_days)


def assert_units_coincide(pairing, fine, coarse):
    """Bags are cells and times of covariates, observations those of the target; both: matched."""
    n = pairing.coarse.n_cells
    given = fine.altitude.notnull().values.reshape(4, 3, 6, 4).all((1, 3)).ravel()
    bags = {(str(t), c) for t in fine.time.values for c in np.flatnonzero(given)}
    target = coarse.tas.values.reshape(len(coarse.time), -1)
    observed = {
        (str(t), c): target[k, c]
        for k, t in enumerate(coarse.time.values)
        for c in np.flatnonzero(np.isfinite(target[k]))
    }

    def name(unit):
        return str(pairing.times[unit // n]), unit % n

    assert {name(u) for u in pairing.bag_unit} == bags
    assert {name(u): z for u, z in zip(pairing.observed_unit, pairing.z, strict=True)} == observed
    own = {name(u) for u, b in zip(pairing.observed_unit, pairing.own_bag, strict=True) if b >= 0}
    assert own == bags & set(observed)
    for unit, bag in zip(pairing.observed_unit, pairing.own_bag, strict=True):
        assert bag == -1 or pairing.bag_unit[bag] == unit
    # Points of a bag have the covariates of its time.
    t, c = name(pairing.bag_unit[-1])
    cloud = fine.cloud.isel(time=[str(v) for v in fine.time.values].index(t)).values
    block = cloud.reshape(4, 3, 6, 4).transpose(0, 2, 1, 3).reshape(24, 12)[c]
    last = pairing.bags.points[pairing.bags.bag == pairing.bags.n_bags - 1, 4]
    np.testing.assert_array_equal(np.sort(last), np.sort(block))


def test_times_partly_in_common():
    fine, coarse = in_time([2, 0, 1], [1, 3, 2])
    pairing = pair(fine, coarse, ask())
    assert_units_coincide(pairing, fine, coarse)
    assert told(pairing, "time").endswith("3 fine and 3 coarse times, 2 in common")
    # Bags of the day without coarse data have no mediators, others those of their day.
    vapour = coarse.water_vapour.values.reshape(3, 24)
    for unit, mediator in zip(pairing.bag_unit, pairing.bag_mediator[:, 3], strict=True):
        day = pairing.times[unit // 24]
        if day == np.datetime64(DAYS[0]):
            assert np.isnan(mediator)
        else:
            k = np.flatnonzero(coarse.time.values == day)[0]
            assert mediator == vapour[k, unit % 24]


def test_times_of_all_units_in_common():
    fine, coarse = in_time([0, 1], [0, 1], matched=1.0)
    pairing = pair(fine, coarse, ask())
    assert pairing.matching == "matched" and pairing.bags.n_bags == 48
    assert_units_coincide(pairing, fine, coarse)


def test_position_alone_can_link_different_times():
    fine, coarse = in_time([0, 1], [2, 3], matched=0.0)
    pairing = pair(fine, coarse, ask(mediators=()))
    assert pairing.matching == "unmatched"
    where = pairing.coarse.positions
    np.testing.assert_array_equal(pairing.bag_mediator, where[pairing.bag_unit % 24])
    np.testing.assert_array_equal(pairing.mediator, where[pairing.observed_unit % 24])


def test_times_in_other_units_are_the_same_times():
    fine, coarse = in_time([0, 1], [1, 2])
    expected = pair(fine, coarse, ask())
    seconds = coarse.assign_coords(time=coarse.time.values.astype("M8[s]"))
    assert seconds.time.dtype == "M8[s]"
    for other in (
        pair(fine, seconds, ask()),
        pair(fine.assign_coords(time=fine.time.values.astype("M8[s]")), coarse, ask()),
    ):
        np.testing.assert_array_equal(other.own_bag, expected.own_bag)
        np.testing.assert_array_equal(other.times, expected.times)


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "standard"])
def test_times_of_other_calendars(calendar):
    def dates(days):
        return [cftime.datetime(2000, 2, 26 + d, calendar=calendar) for d in days]

    fine, coarse = in_time([0, 1], [1, 2])
    expected = pair(fine, coarse, ask())
    fine, coarse = fine.assign_coords(time=dates([0, 1])), coarse.assign_coords(time=dates([1, 2]))
    pairing = pair(fine, coarse, ask())
    np.testing.assert_array_equal(pairing.own_bag, expected.own_bag)
    assert pairing.times.tolist() == dates([0, 1, 2])
    assert_units_coincide(pairing, fine, coarse)


def test_times_of_different_calendars_are_refused():
    fine, coarse = in_time([0, 1], [1, 2])
    days = [cftime.datetime(2000, 1, d, calendar="noleap") for d in (1, 2)]
    message = "fine data are dates of NumPy, .* coarse data dates of the calendar 'noleap'; convert"
    with pytest.raises(UsageError, match=message):
        pair(fine, coarse.assign_coords(time=days), ask())
    other = [cftime.datetime(2000, 1, d, calendar="360_day") for d in (1, 2)]
    with pytest.raises(UsageError, match=r"calendar 'noleap', .* calendar '360_day'"):
        pair(fine.assign_coords(time=days), coarse.assign_coords(time=other), ask())


def test_fine_data_without_time_is_paired_with_the_mean_of_the_coarse():
    _, data = example(times=DAYS)
    fine = data.fine.isel(time=0, drop=True)
    coarse = data.coarse.copy(deep=True)
    cell = tuple(np.argwhere(coarse.tas.isel(time=0).notnull().values)[0])
    coarse.tas[:2, *cell] = np.nan
    pairing = pair(fine, coarse, ask())
    assert pairing.times is None and "averaged over 4 times" in told(pairing, "time")
    mean = coarse.tas.mean("time").values.ravel()
    np.testing.assert_allclose(pairing.z, mean[np.isfinite(mean)], rtol=1e-14)
    vapour = coarse.water_vapour.mean("time").values.ravel()
    np.testing.assert_allclose(pairing.mediator[:, 3], vapour[pairing.observed_unit], rtol=1e-14)
    single = pair(fine, data.coarse.isel(time=[1]), ask())
    assert "time" not in dict(single.understood)


def test_coarse_data_without_time_is_paired_with_all_fine_times():
    _, data = example(times=DAYS[:3])
    fine = data.fine.copy(deep=True)
    fine.cloud[1, :2] = np.nan
    pairing = pair(fine, data.coarse.isel(time=0, drop=True), ask())
    assert pairing.times is None and "at all 3 times" in told(pairing, "time")
    given = np.stack([v.notnull().values for v in fine.cloud])
    sizes = given.reshape(3, 4, 3, 6, 4).sum((0, 2, 4)).ravel()
    np.testing.assert_array_equal(pairing.bags.sizes, sizes[sizes > 0])
    area = np.diff(np.sin(np.radians(np.linspace(-90, 90, 13))))[:, None] * given
    total = (area * np.nan_to_num(fine.cloud.values)).reshape(3, 4, 3, 6, 4).sum((0, 2, 4)).ravel()
    expected = total[sizes > 0] / area.reshape(3, 4, 3, 6, 4).sum((0, 2, 4)).ravel()[sizes > 0]
    np.testing.assert_allclose(pairing.bags.means()[:, 4], expected, rtol=1e-12)


def test_coarse_values_without_time_belong_to_all_times():
    fine, coarse = in_time([0, 1], [1, 2])
    lasting = coarse.assign(height=coarse.water_vapour.isel(time=0, drop=True) + 1.0)
    pairing = pair(fine, lasting, ask(mediators=("height", "water_vapour")))
    height = lasting.height.values.ravel()
    np.testing.assert_array_equal(pairing.bag_mediator[:, 3], height[pairing.bag_unit % 24])
    np.testing.assert_array_equal(pairing.mediator[:, 3], height[pairing.observed_unit % 24])
    first_day = pairing.bag_unit < 24
    np.testing.assert_array_equal(np.isnan(pairing.bag_mediator[:, 4]), first_day)
    # With such mediators alone, data of different times can be linked.
    apart = pair(fine, lasting.isel(time=[1]), ask(mediators=("height",)))
    assert apart.matching == "unmatched" and np.isfinite(apart.bag_mediator).all()
    # A target without time is one value for each cell, not one for each time of its mediators.
    still = coarse.assign(tas=coarse.tas.isel(time=0, drop=True))
    pairing = pair(fine, still, ask())
    assert pairing.times is None and len(pairing.z) == int(still.tas.notnull().sum())
    vapour = coarse.water_vapour.mean("time").values.ravel()
    np.testing.assert_allclose(pairing.mediator[:, 3], vapour[pairing.observed_unit], rtol=1e-14)


# --- mediators from the fine data ---------------------------------------------------------------


def test_missing_mediators_come_from_the_fine_data():
    fields, data = example(0.5)
    coarse = data.coarse.copy(deep=True)
    expected = coarsen(fields, BLOCK).water_vapour.values.ravel()
    coarse.water_vapour[:2] = np.nan
    fine = data.fine.assign(water_vapour=fields.water_vapour)
    pairing = pair(fine, coarse, ask())
    np.testing.assert_allclose(pairing.bag_mediator[:, 3], expected[pairing.bag_unit], rtol=1e-12)
    # An observation has the mediators of its own bag; others of those cells have none.
    own, upper = pairing.own_bag >= 0, pairing.observed_unit >= 12
    np.testing.assert_array_equal(np.isfinite(pairing.mediator[:, 3]), own | upper)
    np.testing.assert_array_equal(pairing.mediator[own], pairing.bag_mediator[pairing.own_bag[own]])
    without = pair(data.fine, coarse, ask())
    assert np.isnan(without.bag_mediator[without.bag_unit < 12, 3]).all()


def test_mediators_are_filled_from_the_cells_that_have_them():
    fields, data = example(0.5)
    coarse = data.coarse.copy(deep=True)
    coarse.water_vapour[0] = np.nan
    vapour = fields.water_vapour.copy(deep=True)
    vapour[1] = np.nan
    vapour[:3, :4] = np.nan  # none at all in the first cell
    pairing = pair(data.fine.assign(water_vapour=vapour), coarse, ask())
    expected = coarsen(fields.assign(water_vapour=vapour), BLOCK).water_vapour.values.ravel()
    filled = pairing.bag_unit < 6
    np.testing.assert_allclose(
        pairing.bag_mediator[filled, 3], expected[pairing.bag_unit[filled]], rtol=1e-12
    )


@pytest.mark.parametrize("covariates_in_time", [False, True])
def test_mediators_of_times_without_coarse_data_come_from_the_fine_data(covariates_in_time):
    fields, data = example(0.5, times=DAYS)
    fine = data.fine.assign(water_vapour=fields.water_vapour).isel(time=[0, 1])
    coarse = data.coarse.isel(time=[1, 2])
    means = coarsen(fields, BLOCK).water_vapour.values.reshape(4, 24)
    if covariates_in_time:
        pairing = pair(fine, coarse, ask())
        expected = means.reshape(-1)[pairing.bag_unit]
    else:  # then time is averaged over, on both sides
        coarse = coarse.copy(deep=True)
        coarse.water_vapour[:, 0] = np.nan
        pairing = pair(fine, coarse, ask(covariates=("altitude",)))
        expected = np.where(np.arange(24) < 6, means[:2].mean(0), means[1:3].mean(0))
        expected = expected[pairing.bag_unit]
    np.testing.assert_allclose(pairing.bag_mediator[:, 3], expected, rtol=1e-12)


# --- what must not matter -----------------------------------------------------------------------


def sorted_rows(rows):
    """Rows in an order that rounding does not change."""
    rounded = np.round(rows, 7) + 0.0
    return rows[np.lexsort(rounded.T[::-1])]


def content(pairing):
    """Memberships with bag and weight, and observations with the mean of their own bag, as sets."""
    bags = pairing.bags
    memberships = np.column_stack([pairing.bag_mediator[bags.bag], bags.points, bags.weights])
    own = np.where(pairing.own_bag[:, None] >= 0, bags.means()[pairing.own_bag], -1.0)
    observations = np.column_stack([pairing.z, pairing.mediator, own])
    return sorted_rows(memberships), sorted_rows(observations)


CHANGES = {
    "rows reversed": lambda d: d.isel(lat=slice(None, None, -1)),
    "columns reversed": lambda d: d.isel(lon=slice(None, None, -1)),
    "rolled": lambda d: d.roll(lon=d.sizes["lon"] // 3, roll_coords=True),
    "rolled without bounds": lambda d: d.drop_vars(["lat_bnds", "lon_bnds"]).roll(
        lon=d.sizes["lon"] // 2 - 1, roll_coords=True
    ),
    "a turn further": lambda d: d.assign_coords(lon=d.lon + 360.0, lon_bnds=d.lon_bnds + 360.0),
    "from 0 to 360": lambda d: d.assign_coords(
        lon=np.mod(d.lon, 360.0), lon_bnds=np.mod(d.lon_bnds, 360.0)
    ),
    "from 0 to 360, sorted": lambda d: (
        d.assign_coords(lon=np.mod(d.lon, 360.0)).drop_vars("lon_bnds").sortby("lon")
    ),
    "without attributes": lambda d: d.drop_attrs(),
    "other names": lambda d: d.rename(lat="north", lon="east"),
    "other order of dimensions": lambda d: d.transpose("lon", ..., "lat"),
    "another dimension": lambda d: d.expand_dims(height=[2.0]),
    "coordinate unlike dimension": lambda d: d.reset_index(["lat", "lon"]).rename_dims(
        lat="row", lon="column"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("side", ["fine", "both"])
def test_pairs_do_not_depend_on_how_data_are_laid_out(change, side):
    _, data = example(0.4, times=DAYS[:2], extent=(-90, 90, -180, 180))
    changed = {
        name: CHANGES[change](dataset) if side in (name, "both") else dataset
        for name, dataset in (("fine", data.fine), ("coarse", data.coarse))
    }
    found = pair(changed["fine"], changed["coarse"], ask())
    expected = pair(data.fine, data.coarse, ask())
    for one, other in zip(content(found), content(expected), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_kilometres_and_metres_can_be_paired():
    _, data = example(0.5, projected=True)
    expected = pair(data.fine, data.coarse, ask())
    coarse = data.coarse.assign_coords(
        {
            n: (data.coarse[n].dims, data.coarse[n].values / 1e3)
            for n in ("y", "x", "y_bnds", "x_bnds")
        }
    )
    for name in "yx":
        coarse[name].attrs = data.coarse[name].attrs | {"units": "km"}
    found = pair(data.fine, coarse, ask())
    np.testing.assert_allclose(found.bags.weights, expected.bags.weights, rtol=1e-9)
    np.testing.assert_array_equal(found.bags.bag, expected.bags.bag)
    np.testing.assert_allclose(found.bag_mediator, expected.bag_mediator, rtol=1e-12)


def test_one_mapping_of_dims_serves_two_datasets():
    _, data = example(0.5)
    fine = (
        data.fine.drop_attrs().rename(lat="north", lon="east").drop_vars(["lat_bnds", "lon_bnds"])
    )
    for name in ("north", "east"):
        fine[name].attrs["units"] = "degrees"
    with pytest.raises(UsageError, match="fine data: no latitude"):
        pair(fine, data.coarse, ask())
    dims = {"y": "north", "x": "east"}
    found, expected = pair(fine, data.coarse, ask(dims=dims)), pair(data.fine, data.coarse, ask())
    np.testing.assert_allclose(found.bags.weights, expected.bags.weights, rtol=1e-12)
    with pytest.raises(UsageError, match="dims names 'nort' as y, but neither dataset has it"):
        pair(fine, data.coarse, ask(dims={"y": "nort", "x": "east"}))


# --- projections --------------------------------------------------------------------------------


def test_the_same_projection_in_other_words_is_the_same():
    _, data = example(0.5, projected=True)
    coarse = data.coarse.copy(deep=True)
    coarse.crs.attrs.update(longitude_of_central_meridian=360.0, earth_radius=6371229.0)
    found, expected = pair(data.fine, coarse, ask()), pair(data.fine, data.coarse, ask())
    np.testing.assert_array_equal(found.bags.points, expected.bags.points)


def turned(dataset, pole=None):
    """The dataset with a moved pole, which may be known."""
    dataset = dataset.copy(deep=True)
    dataset.lat.attrs["standard_name"] = "grid_latitude"
    dataset.lon.attrs["standard_name"] = "grid_longitude"
    if pole is not None:
        about = {"grid_mapping_name": "rotated_latitude_longitude"}
        about |= {"grid_north_pole_latitude": pole, "grid_north_pole_longitude": -162.0}
        dataset["pole"] = ((), 0, about)
        for name in ("altitude", "cloud", "tas", "water_vapour"):
            if name in dataset:
                dataset[name].attrs["grid_mapping"] = "pole"
    return dataset


def test_grids_of_one_moved_pole_are_paired_as_any_others():
    _, data = example(0.5)
    pairing = pair(turned(data.fine, 39.25), turned(data.coarse, 39.25), ask())
    assert pairing.bags.n_bags == 18
    with pytest.raises(UsageError, match="is rotated latitude longitude, the other"):
        pair(turned(data.fine), data.coarse, ask())


# --- what cannot be paired ----------------------------------------------------------------------


def replaced(dataset, **values):
    """Variables of the dataset with one value wherever they have one."""
    return dataset.assign({n: dataset[n] * 0 + v for n, v in values.items()})


@pytest.mark.parametrize(
    ("question", "change", "message"),
    [
        ({"covariates": ("tas",)}, None, "'tas' is both the target and a covariate"),
        (
            {"covariates": ("depth",)},
            None,
            "the fine data has no variable 'depth'; it has altitude",
        ),
        ({"mediators": ("depth",)}, None, "the coarse data has no variable 'depth'"),
        ({"covariates": (), "position": False}, None, "nothing to predict from: name covariates"),
        ({"mediators": (), "position": False}, None, "nothing links them to the covariates; name"),
        ({"min_cover": 50}, None, "min_cover is a share of a coarse cell, between 0 and 1, not 50"),
        ({"min_cover": np.nan}, None, "min_cover is a share"),
        ({}, lambda f, c: (replaced(f, altitude=7.0), c), r"'altitude' is constant \(7\) in all"),
        (
            {},
            lambda f, c: (replaced(f, cloud=np.nan), c),
            "covariate 'cloud' is missing everywhere",
        ),
        ({}, lambda f, c: (f, replaced(c, tas=np.nan)), "target 'tas' is missing in every coarse"),
        ({}, lambda f, c: (f, replaced(c, tas=280.0)), "'tas' has the same value, 280, in every"),
        (
            {},
            lambda f, c: (f, replaced(c, water_vapour=np.nan)),
            "the mediator 'water_vapour' is missing in every coarse cell",
        ),
        (
            {},
            lambda f, c: (
                f.assign(cloud=f.cloud.where(f.lat > 0), altitude=f.altitude.where(f.lat < 0)),
                c,
            ),
            "no fine cell has all covariates: wherever one is known, another is missing",
        ),
        (
            {},
            lambda f, c: (f, c.isel(lat=[1], lon=slice(0, 4)).where(c.tas.notnull())),
            r"'tas' is known in \d coarse cell\(s\); at least 5",
        ),
        (
            {},
            lambda f, c: (f.isel(lat=slice(0, 3)), c.isel(lat=[3])),
            "the grids do not overlap: fine 3 cells of lat from -90 to -45°",
        ),
        (
            {"min_cover": 1.0},
            lambda f, c: (f.where(f.lon % 30 < 15), c),
            r"no coarse cell has fine covariates over 100% of its area \(the most is 50%\); lower",
        ),
        (
            {},
            lambda f, c: (f, c.assign(water_vapour=c.water_vapour.where(c.tas.isnull()))),
            r"\d observations of 'tas' have mediators or a bag of their own; at least 5",
        ),
    ],
)
def test_data_that_cannot_be_paired(question, change, message):
    _, data = example(0.0 if change is None or "observations" in message else 0.1)
    fine, coarse = (data.fine, data.coarse) if change is None else change(data.fine, data.coarse)
    with pytest.raises(UsageError, match=message) as error:
        pair(fine, coarse, ask(**question))
    assert "\n" not in str(error.value)


def test_one_coarse_cell_is_too_few():
    _, data = example(1.0)
    with pytest.raises(UsageError, match=r"known in 1 coarse cell\(s\)"):
        pair(data.fine, data.coarse.isel(lat=[1], lon=[2]), ask())


def test_mediators_must_reach_the_times_of_the_covariates():
    fine, coarse = in_time([0, 1], [2, 3])
    message = (
        "no bag has mediators.* fine covariates are at from 2000-01-01 to 2000-01-02, the coarse "
        "data at from 2000-01-03 to 2000-01-04; give the mediators at the times of the covariates"
    )
    with pytest.raises(UsageError, match=message):
        pair(fine, coarse, ask())


def test_matched_data_need_no_mediators():
    _, data = example(1.0)
    pairing = pair(data.fine, data.coarse, ask(mediators=(), position=False))
    assert pairing.mediator.shape == (24, 0) and pairing.matching == "matched"


def test_what_was_understood_is_said():
    _, data = example(0.5)
    pairing = pair(data.fine, data.coarse, ask())
    assert dict(pairing.understood) == {
        "fine grid": "12 cells of lat from -90 to 90° by 24 cells of lon from -180 to 180°",
        "coarse grid": "4 cells of lat from -90 to 90° by 6 cells of lon from -180 to 180°",
        "covariates": "position, altitude, cloud, known in 75.0% of 288 fine cells",
        "mediators": "position, water_vapour, missing for 0 of 18 bags and 0 of 18 observations",
        "bags": "18 coarse cells with fine covariates, 12 fine cells in each",
        "observations": "18 of 24 coarse cells have tas",
        "matching": "12 observations have a bag of their own and are learnt from; the other 6 are "
        "left out, unless the model is one that needs mediators",
    }
