"""Nothing is compiled twice: what is static in a fit compares by value, and data are data."""

import jax
import numpy as np
import pytest

import deconditional as dc

SHORT = {"n_restarts": 2, "max_iter": 3}
INDUCING = {"n_inducing": 6, **SHORT}
CLIMB = {"max_steps": 12, "batch_size": 8}

seen_by_the_listener = 1.0

MODELS = {
    "nuts": lambda seed: dc.BaggGP(
        method="nuts",
        method_options={"num_warmup": 4, "num_samples": 8},
        priors={"kernel.variance": dc.LogNormal(0.1 + seed, 0.5 + seed)},
        fixed={"noise_std": 0.1 + seed},
        trend="linear",
        seed=seed,
        **SHORT,
    ),
    "u-cmp": lambda seed: dc.CMP(uncertainty=True, seed=seed, **SHORT),
    "stochastic": lambda seed: dc.VBagg(
        inference="stochastic", inference_options=CLIMB, seed=seed, **INDUCING
    ),
    "varcmp": lambda seed: dc.VarCMP(uncertainty=True, seed=seed, **INDUCING),
    "pseudo-targets": lambda seed: dc.PseudoTarget(dc.BaggGP(seed=seed, **SHORT), seed=seed),
}
"""One of every observation model and every inference; priors and held values are data as well."""


@pytest.fixture
def compiled():
    """Names of what XLA compiled, or fetched from disk, since the list was emptied last."""
    names = []

    def listen(event, duration, **about):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(about.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.filterwarnings("ignore::deconditional.DeconditionalWarning")
def test_trends_in_some_covariates_share_what_is_compiled(compiled):
    """In one, in the other, in none: kriging and regression kriging are one objective."""
    bags = dc.Bags.from_points(np.random.default_rng(0).uniform(size=(24, 2)), np.arange(24) // 3)
    z = bags.means(bags.points[:, 0])
    for trend in ((1,), (0,), ()):
        compiled.clear()
        dc.BaggGP(trend=trend, **SHORT).fit(bags, z).predict(bags.points).mean  # noqa: B018
        assert trend == (1,) or compiled == []


def fit_and_predict(make, seed):
    """A fit to new data of the same shapes, and everything that can be asked of it."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(16, 1))
    points = rng.uniform(0, 4, (16 * 6, 2)) + y.repeat(6, 0)
    bags = dc.Bags.from_points(points, np.repeat(np.arange(16), 6), mediator=y)
    z = bags.means(np.sin(points[:, 0]) + points[:, 1]) + 0.1 * rng.normal(size=16)
    model = make(seed)
    more = {"mediator": y[::-1]} if hasattr(model, "predict_coarse") else {}
    model.fit(bags, z[::-1] if more else z, **more)
    posterior = model.predict(points[:40])
    for _ in (posterior.std, posterior.extrapolation, posterior.covariance(), posterior.sample(2)):
        pass
    model.predict_bags(bags).covariance()
    model.predict(points[:40], features=20).mean  # noqa: B018
    posterior.sample(2, method="pathwise", n_features=50)
    if more:
        model.predict_coarse(y[:3]).covariance()


@pytest.mark.filterwarnings("ignore::deconditional.DeconditionalWarning")
@pytest.mark.parametrize("name", MODELS)
def test_a_second_fit_of_equal_shapes_compiles_nothing(name, compiled):
    fit_and_predict(MODELS[name], 0)
    jax.jit(lambda x: x + seen_by_the_listener)(1.0)
    assert "jit(<lambda>)" in compiled
    compiled.clear()
    fit_and_predict(MODELS[name], 1)
    assert compiled == []
