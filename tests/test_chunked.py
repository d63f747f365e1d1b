"""Chunked fine data: the same bags and predictions as in memory, however the chunks lie."""

import numpy as np
import pytest

xr = pytest.importorskip("xarray")
dask = pytest.importorskip("dask")
pytest.importorskip("cf_xarray")

import deconditional as dc  # noqa: E402
from deconditional.datasets import coarsen, split_cells, synthetic_fields  # noqa: E402
from deconditional.errors import UsageError  # noqa: E402
from deconditional.fields import fine_bags, part, parts  # noqa: E402
from deconditional.fields.predict import Wanted, chunk_predictor, parts_of  # noqa: E402
from deconditional.fields.question import Question  # noqa: E402
from deconditional.fields.sides import FineSide  # noqa: E402
from deconditional.fields.validation import sharing  # noqa: E402
from pairs import pair  # noqa: E402

COVARIATES, MEDIATORS = ["altitude", "cloud"], ["water_vapour"]
ROLES = ("tas", COVARIATES, MEDIATORS)
DAYS = ["2000-01-01", "2000-01-02", "2000-01-03"]
CHUNKS = [
    pytest.param({"lat": 6, "lon": 12}, id="whole bags"),
    pytest.param({"lat": 5, "lon": 7}, id="cut bags"),
    pytest.param({"lat": 18, "lon": 36}, id="one chunk"),
]


def ask(**changes):
    asked = {"target": "tas", "covariates": tuple(COVARIATES), "mediators": tuple(MEDIATORS)}
    return Question(**(asked | changes))


def example(block=3, matched=0.5, **options):
    fields = synthetic_fields(18, 36, **options)
    return fields, split_cells(fields, *ROLES, block, matched=matched)


def assert_same_pairing(found, expected):
    assert found.understood == expected.understood
    assert found.matching == expected.matching
    np.testing.assert_array_equal(found.bag_unit, expected.bag_unit)
    np.testing.assert_array_equal(found.own_bag, expected.own_bag)
    np.testing.assert_allclose(found.bag_mediator, expected.bag_mediator, rtol=1e-12)
    np.testing.assert_array_equal(found.bag_sizes, expected.bag_sizes)
    for one, other in zip(vars(found.spread).values(), vars(expected.spread).values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def assert_same_bags(found, expected):
    order = np.argsort(expected.bag, kind="stable")
    assert found.ids == expected.ids
    np.testing.assert_array_equal(found.bag, expected.bag[order])
    np.testing.assert_array_equal(found.points, expected.points[order])
    np.testing.assert_allclose(found.weights, expected.weights[order], atol=1e-9)


# ---------------------------------------------------------------------- pairing


@pytest.mark.parametrize("chunks", CHUNKS)
def test_bags_do_not_depend_on_chunks(chunks):
    _, data = example()
    expected = pair(data.fine, data.coarse, ask())
    found = pair(data.fine.chunk(chunks), data.coarse, ask())
    assert_same_pairing(found, expected)
    which = np.arange(expected.n_bags)[::-1][:7]
    for size in (None, 4):
        bags = found.fine_bags.make(which, size, 0)
        assert_same_bags(bags, expected.fine_bags.make(which, size, 0))
    assert set(bags.sizes) == {4}


def test_with_a_mask_times_and_mediators_of_the_fine_data():
    fields, data = example(times=DAYS)
    rng = np.random.default_rng(0)
    share = rng.uniform(size=(18, 36)) * (rng.uniform(size=(18, 36)) > 0.2)
    fine = data.fine.assign(land=(("lat", "lon"), share), water_vapour=fields.water_vapour)
    fine["cloud"] = fine.cloud.where(rng.uniform(size=fine.cloud.shape) > 0.45)
    coarse = data.coarse.assign(water_vapour=data.coarse.water_vapour.where(data.coarse.lat > 0))
    question = ask(mask="land", min_cover=0.6)
    expected = pair(fine, coarse, question)
    assert "left out" in dict(expected.understood) and expected.times is not None
    for chunks in ({"time": 2, "lat": 5, "lon": 36}, {"time": 1, "lat": 18, "lon": 7}):
        found = pair(fine.chunk(chunks), coarse, question)
        assert_same_pairing(found, expected)
        which = np.arange(expected.n_bags)
        assert_same_bags(
            found.fine_bags.make(which, None, 0), expected.fine_bags.make(which, None, 0)
        )


def test_cells_that_do_not_nest():
    fine = synthetic_fields(18, 36)[COVARIATES]
    coarse = coarsen(synthetic_fields(20, 40), (4, 5))[["tas", *MEDIATORS]]
    expected = pair(fine, coarse, ask())
    found = pair(fine.chunk({"lat": 5, "lon": 11}), coarse, ask())
    assert_same_pairing(found, expected)
    which = np.arange(expected.n_bags)
    assert_same_bags(found.fine_bags.make(which, 6, 0), expected.fine_bags.make(which, 6, 0))
    fold = np.arange(len(expected.z)) % 3
    shared = [sharing(p.pairing, p.fine_bags, fold).toarray() for p in (found, expected)]
    np.testing.assert_array_equal(*shared)
    assert shared[0].any()
    assert found.fine_bags.make(which).share_points


def test_large_bags_of_several_chunks_are_thinned_on_the_way(monkeypatch):
    monkeypatch.setattr(fine_bags, "MOST_POINTS", 40)
    _, data = example(block=9, matched=1.0)
    found = pair(data.fine.chunk({"lat": 5, "lon": 7}), data.coarse, ask()).fine_bags
    bags = found.make(np.arange(2), 12, 3)
    whole = pair(data.fine, data.coarse, ask()).fine_bags.make(np.arange(2), None, 0)
    spread = whole.points.std(0)
    # Forty of 81 points, drawn at random: their mean is off by about 0.11 standard deviations.
    assert np.abs((bags.means() - whole.means()) / spread).max() < 0.4


def test_thinned_bags_keep_their_area():
    n = 20_000
    cells, area = np.arange(n), np.where(np.arange(n) % 2, 3.0, 1.0)
    piece = fine_bags.BagPoints(np.zeros(n, dtype=int), cells, np.zeros((n, 1)), area)
    plan = fine_bags.Reduction(np.array([0]), np.array([True]), 10, 2000, 1)
    found = plan.reduced(piece)
    assert len(found.amount) == 2000
    assert found.amount.sum() == pytest.approx(area.sum())
    assert found.amount[found.number % 2 == 1].sum() == pytest.approx(3.0 * n / 2, rel=0.05)


def test_models_of_centroids_get_the_means_of_whole_bags():
    _, data = example()
    which = np.arange(10)
    expected = pair(data.fine, data.coarse, ask()).fine_bags.make(which).means()
    chunked = pair(data.fine.chunk({"lat": 5}), data.coarse, ask())
    found = chunked.fine_bags.make(which, 1_000_000, 0)
    np.testing.assert_allclose(found.points, expected, rtol=1e-12)


def test_no_task_sees_more_than_its_chunk(monkeypatch):
    seen = []
    of_chunk = part.Reader.part

    def watched(self, place, arrays):
        seen.append(max(array.size for array in arrays))
        return of_chunk(self, place, arrays)

    monkeypatch.setattr(part.Reader, "part", watched)
    _, data = example()
    found = pair(data.fine.chunk({"lat": 5, "lon": 7}), data.coarse, ask())
    found.fine_bags.make(np.arange(found.n_bags), 4, 0)
    assert max(seen) == 35 and len(seen) == 2 * 4 * 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.assign(cloud=d.cloud * np.nan), "'cloud' is missing everywhere"),
        (
            lambda d: d.assign(
                cloud=d.cloud.where(d.lat > 0), altitude=d.altitude.where(d.lat < 0)
            ),
            "no fine cell has all covariates",
        ),
        (lambda d: d.assign(cloud=d.cloud * 0 + 1.5), "'cloud' is constant"),
        (lambda d: d.assign_coords(lon=d.lon / 1000), "coarse cell has fine covariates over"),
        (lambda d: d.assign(land=d.cloud * 0 + 40), "runs from 40 to 40"),
    ],
)
def test_bad_data_is_refused_as_in_memory(change, message):
    fields, _ = example()
    fine = change(fields[COVARIATES])
    question = ask(mask="land") if "land" in fine else ask()
    for given in (fine, fine.chunk({"lat": 5, "lon": 7})):
        with pytest.raises(UsageError, match=message):
            pair(given, coarsen(fields, 3), question)


def test_chunks_that_are_too_large_are_refused():
    with pytest.raises(UsageError, match="900,000,000 cells, too many"):
        parts._check_size(((1,), (30_000,), (30_000,)), 2)


# ---------------------------------------------------------------------- predicting


@pytest.fixture(scope="module")
def fitted():
    _, data = example()
    downscaler = dc.Downscaler(*ROLES, model="bagg-gp", n_restarts=1, bounds=(200, None))
    return data, downscaler.fit(data.fine, data.coarse)


def assert_same_result(found, expected, tolerance=1e-9):
    assert set(found.variables) == set(expected.variables)
    for name, variable in expected.items():
        assert found[name].dims == variable.dims and found[name].attrs == variable.attrs, name
        np.testing.assert_allclose(found[name], variable, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("chunks", CHUNKS)
def test_predictions_do_not_depend_on_chunks(fitted, chunks):
    data, downscaler = fitted
    expected = downscaler.predict(data.everywhere, quantiles=[0.1, 0.9])
    given = data.everywhere.chunk(chunks)
    found = downscaler.predict(given, quantiles=[0.1, 0.9])
    assert found["mean"].chunks == given.altitude.chunks
    assert found["quantiles"].chunks[1:] == given.altitude.chunks
    for name in ("mean", "std", "quantiles", "latent_mean", "coarse_mean", "coarse_residual"):
        assert found[name].chunks is not None, name
    computed = found.compute()
    computed["coarse_role"].attrs = expected["coarse_role"].attrs
    assert_same_result(computed, expected)


def test_nothing_is_computed_until_it_is_asked_for(fitted):
    data, downscaler = fitted

    def refuse(*_, **__):
        raise AssertionError("computed")

    with dask.config.set(scheduler=refuse):
        given = {name: data.everywhere[name].chunk({"lat": 6}) for name in COVARIATES}
        found = downscaler.predict(data.everywhere.assign(given), samples=2)
        with pytest.raises(AssertionError, match="computed"):
            found["mean"].compute()


def test_missing_covariates_stay_missing(fitted):
    data, downscaler = fitted
    hidden = data.everywhere.where(data.everywhere.lat > 0)
    expected = downscaler.predict(hidden)
    found = downscaler.predict(hidden.chunk({"lat": 4, "lon": 36}))
    assert found["mean"].isnull().values.any() and found["coarse_mean"].isnull().values.any()
    np.testing.assert_allclose(found["mean"], expected["mean"], atol=1e-9)
    np.testing.assert_allclose(found["coarse_mean"], expected["coarse_mean"], atol=1e-9)


def test_samples_are_the_same_functions_in_every_chunk(fitted):
    data, downscaler = fitted
    given = [
        downscaler.predict(data.everywhere.chunk(chunks), samples=3)["samples"].values
        for chunks in ({"lat": 6, "lon": 12}, {"lat": 5, "lon": 7})
    ]
    np.testing.assert_allclose(given[0], given[1], atol=1e-8)
    post = downscaler.model_.predict(
        downscaler.input_scaling_(
            np.concatenate(
                [
                    downscaler.pairing_.fine.positions,
                    np.stack([data.everywhere[n].values.ravel() for n in COVARIATES], 1),
                ],
                1,
            )
        )
    )
    draws = downscaler.target_scaling_.physical(post.sample(3, 0, method="pathwise"))
    np.testing.assert_allclose(given[0].reshape(3, -1), draws, atol=1e-8)


def test_noise_of_single_values_in_samples():
    _, data = example(matched=1.0)
    options = {"model": "bagg-gp", "n_restarts": 1, "fine_noise": True}
    options["model_options"] = {"method": "map"}  # one value of the noise
    downscaler = dc.Downscaler(*ROLES, **options).fit(data.fine, data.coarse)
    given = data.fine.chunk({"lat": 9})
    found = downscaler.predict(given, samples=20)["samples"].values
    np.testing.assert_array_equal(found, downscaler.predict(given, samples=20)["samples"])
    problem = downscaler.learner_.problem
    wanted = Wanted(problem.target, n_samples=20, fine_noise=True)
    paths = chunk_predictor(downscaler.model_, problem, wanted).paths
    whole = parts_of(FineSide.of(data.fine, problem.pairing.question), problem).only
    smooth = problem.target.physical(paths(problem.inputs(whole.points)))
    noise = found.reshape(20, -1) - smooth
    expected = problem.target.scale * downscaler.model_.parameters_["fine_noise_std"]
    # 12960 values: their standard deviation is known to 0.6 %.
    assert abs(noise.std() / expected - 1.0) < 0.03
    assert abs(np.corrcoef(noise[:, :-1].ravel(), noise[:, 1:].ravel())[0, 1]) < 0.04


@pytest.mark.filterwarnings("ignore::deconditional.errors.DegenerateFitWarning")
def test_times():
    _, data = example(times=DAYS)
    downscaler = dc.Downscaler(*ROLES, model="gpr", n_restarts=1).fit(data.fine, data.coarse)
    expected = downscaler.predict(data.everywhere)
    found = downscaler.predict(data.everywhere.chunk({"time": 2, "lat": 7, "lon": 36})).compute()
    np.testing.assert_allclose(found["mean"], expected["mean"], atol=1e-9)
    np.testing.assert_allclose(found["coarse_mean"], expected["coarse_mean"], atol=1e-9)


def test_a_fit_to_chunks_is_the_fit_to_the_whole(fitted):
    data, downscaler = fitted
    other = dc.Downscaler(**downscaler.get_params(deep=False))
    other.fit(data.fine.chunk({"lat": 5, "lon": 7}), data.coarse)
    for name, value in downscaler.model_.parameters_.items():
        np.testing.assert_allclose(other.model_.parameters_[name], value, rtol=1e-3)


def test_consistent_means_need_the_data_in_memory(fitted):
    data, _ = fitted
    downscaler = dc.Downscaler(*ROLES, model="bagg-gp", n_restarts=1, consistency="exact")
    downscaler.fit(data.fine, data.coarse)
    lazy = data.everywhere.chunk({"lat": 6})
    with pytest.raises(UsageError, match=r"needs the fine data in memory"):
        downscaler.predict(lazy)


def test_consistency_that_cannot_be_had_is_said_before_the_fit(fitted, monkeypatch):
    data, _ = fitted
    monkeypatch.setattr(dc.Downscaler, "prepare", lambda *_: pytest.fail("began"))
    with pytest.raises(UsageError, match=r"needs the fine data in memory"):
        dc.downscale(data.fine.chunk({"lat": 6}), data.coarse, *ROLES, consistency="exact")
