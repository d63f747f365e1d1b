"""Predictions of every model on small problems: written once, before the house was rebuilt.

``python tests/predictions.py FILE`` writes them. Parameters are held, or learning stops after a few
iterations, before rounding could be magnified.
"""

import sys
import warnings
from collections.abc import Callable, Iterator

import numpy as np

import deconditional as dc

KERNEL = {"kernel.lengthscale": np.array([0.9, 1.3, 0.5]), "kernel.variance": 0.8}
HELD = {**KERNEL, "noise_std": 0.12}
LINKED = {**HELD, "mediator_kernel.lengthscale": 0.6, "ridge": 0.01}
SHORT = {"n_restarts": 1, "max_iter": 3}

DIRECT = dc.datasets.swiss_roll(n_points=300, n_bags=12, seed=0)
INDIRECT = dc.datasets.swiss_roll(n_points=300, n_bags=14, matching="indirect", seed=1)
X = DIRECT.x[::10]


def matched(model: dc.BaggGP, **options: object) -> dc.BaggGP:
    return model.fit(DIRECT.bags, DIRECT.z, **options)


def mediated(model: dc.CMP, **options: object) -> dc.CMP:
    return model.fit(INDIRECT.bags, INDIRECT.z, mediator=INDIRECT.mediator, **options)


def own_bags() -> np.ndarray:
    own = np.full(len(INDIRECT.z), -1)
    own[2], own[4] = 1, 3
    return own


MODELS: dict[str, Callable[[], object]] = {
    "bagg": lambda: matched(dc.BaggGP(fixed=HELD)),
    "bagg, linear trend": lambda: matched(dc.BaggGP(fixed=HELD, trend="linear")),
    "bagg, fine noise": lambda: matched(
        dc.BaggGP(fixed={**HELD, "fine_noise_std": 0.3}, fine_noise=True, trend="none")
    ),
    "bagg, known noise": lambda: matched(
        dc.BaggGP(fixed=KERNEL), noise_std=np.linspace(0.1, 0.3, len(DIRECT.z))
    ),
    "bagg, learnt": lambda: matched(dc.BaggGP(**SHORT)),
    "bagg, float32": lambda: matched(dc.BaggGP(fixed=HELD, precision="float32")),
    "centroid": lambda: matched(dc.CentroidGP(fixed=HELD)),
    "cmp": lambda: mediated(dc.CMP(fixed=LINKED)),
    "s-cmp": lambda: mediated(dc.CMP(fixed=LINKED, cmo="shrinkage", trend="none")),
    "u-cmp": lambda: mediated(dc.CMP(fixed=LINKED, uncertainty=True, centred=True)),
    "u-cmp, own bags": lambda: mediated(
        dc.CMP(fixed={**LINKED, "fine_noise_std": 0.2}, uncertainty=True, fine_noise=True),
        own_bag=own_bags(),
    ),
    "u-cmp, learnt": lambda: mediated(dc.CMP(uncertainty=True, trend="linear", **SHORT)),
    "vbagg": lambda: matched(dc.VBagg(fixed=HELD, n_inducing=20)),
    "vbagg, features": lambda: matched(dc.VBagg(fixed=HELD, features=40)),
    "vbagg, sampled trace": lambda: matched(dc.VBagg(n_inducing=20, trace="subsample", **SHORT)),
    "varcmp": lambda: mediated(dc.VarCMP(fixed=LINKED, n_inducing=20, uncertainty=True)),
    "varcmp, linear trend": lambda: mediated(
        dc.VarCMP(fixed=LINKED, n_inducing=20, trend="linear")
    ),
    "varcmp, learnt": lambda: mediated(dc.VarCMP(n_inducing=20, **SHORT)),
    "var-centroid": lambda: matched(dc.VarCentroidGP(fixed=HELD, n_inducing=10)),
    "pseudo-target": lambda: mediated(dc.PseudoTarget(dc.BaggGP(fixed=HELD))),
    "regressor": lambda: dc.DeconditionalRegressor().fit(
        INDIRECT.bags, INDIRECT.z, mediator=INDIRECT.mediator
    ),
}


def answers(model: object) -> Iterator[tuple[str, np.ndarray]]:
    """All that a fitted model can be asked for, by name."""
    if isinstance(model, dc.DeconditionalRegressor):
        yield "mean", model.predict(X)
        return
    post = model.predict(X)
    yield "mean", post.mean
    yield "std", post.std
    yield "covariance", post.covariance()
    yield "joint samples", post.sample(3, seed=1)
    yield "interval", np.stack(post.interval(0.9))
    yield "pathwise samples", post.sample(3, seed=1, method="pathwise", n_features=50)
    yield "through features", model.predict(X, features=30).mean
    bags = model.predict_bags(DIRECT.bags)
    yield "bag means", bags.mean
    yield "bag covariance", bags.covariance()
    held_out = model.predict_held_out(np.arange(len(held_out_of(model))) % 3)
    yield "held out", np.stack([held_out.mean, held_out.std])
    if hasattr(model, "predict_coarse"):
        yield "coarse", np.stack([(c := model.predict_coarse([0.1, 0.4])).mean, c.std])


def held_out_of(model: object) -> np.ndarray:
    return INDIRECT.z if isinstance(model, dc.CMP | dc.PseudoTarget) else DIRECT.z


def field_answers() -> Iterator[tuple[str, np.ndarray]]:
    """Fields from matched and from unmatched cells."""
    fields = dc.datasets.synthetic_fields(n_lat=12, n_lon=24)
    model = dc.BaggGP(**SHORT)
    for name, share, of in (("matched", 1.0, model), ("unmatched", 0.5, dc.CMP(**SHORT))):
        data = dc.datasets.split_cells(
            fields, "tas", ["altitude"], ["water_vapour"], block=3, matched=share
        )
        mediators = [] if share == 1.0 else ["water_vapour"]
        out = dc.downscale(
            data.fine,
            data.coarse,
            "tas",
            ["altitude"],
            mediators,
            model=of,
            quantiles=[0.1],
            samples=2,
        )
        for variable in ("mean", "std", "quantiles", "samples"):
            yield f"{name} fields: {variable}", out[variable].values


def predictions(names: list[str] | None = None) -> dict[str, np.ndarray]:
    """Every answer of every model, by name."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in MODELS if names is None else names:
            for what, values in answers(MODELS[name]()):
                found[f"{name}: {what}"] = np.asarray(values)
        if names is None:
            found |= dict(field_answers())
    return found


if __name__ == "__main__":
    np.savez_compressed(sys.argv[1], **predictions())
