"""What every model shares: learning from a problem, predicting from what was learnt."""

from __future__ import annotations

import re
import time
from typing import Any, Self, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gpjax.kernels.base import AbstractKernel

from deconditional import errors
from deconditional.bags import Bags
from deconditional.errors import VERSION
from deconditional.fitting.report import FitReport
from deconditional.inference.field import Field
from deconditional.inference.learn import Fitted, Learning, learn
from deconditional.inference.posterior import CoarsePosterior, Gaussians, Posterior
from deconditional.kernels.layout import Layout
from deconditional.models.checks import check_bags, check_count
from deconditional.models.data import Data
from deconditional.models.options import BagOptions, BasisOptions
from deconditional.models.problems import own_starts, problem_parts
from deconditional.models.rates import (
    asked_bags,
    asked_points,
    held_out_draws,
    over_bags,
    rates_of,
)
from deconditional.models.report import take
from deconditional.models.solvers import Posed, check_inference, pose
from deconditional.observations.kinds import Observation
from deconditional.saving.api import Savable
from deconditional.saving.identity import digest, plain
from deconditional.saving.resume import CheckpointPart

Model = TypeVar("Model", bound="BagModel")


class BagModel(Savable, BagOptions):
    """Base of the models of bags: what one can ask of a model that was fitted.

    Attributes
    ----------
    fitted_
        What was learnt.
    """

    fitted_: Fitted
    bags_: Bags
    n_features_in_: int
    kernel_: AbstractKernel
    parameters_: dict[str, Any]
    priors_: dict[str, Any]
    log_evidence_: float
    fit_report_: FitReport

    def check_options(self) -> None:
        """Raise where an option is none of its choices, or contradicts another."""
        super().check_options()
        if isinstance(self, BasisOptions):
            check_inference(self)

    def predict(
        self,
        x: npt.ArrayLike,
        fine_noise: bool = False,
        features: int | None = None,
        *,
        source: int = 0,
        task: int | None = None,
    ) -> Posterior:
        """Posterior of the fine field.

        Parameters
        ----------
        x : (m, d) or (m,)
            Query points, with the covariates of the bags in the same order.
        fine_noise
            Add the learnt high-resolution noise to variances, intervals and samples: the spread
            of a single fine value rather than of the smooth field.
        features
            Approximate the kernel by so many random Fourier features, at the learnt parameters.
            Once the features of the bags are averaged, a query point costs no more however many
            points the bags have. :func:`~deconditional.feature_error` tells what it costs in
            accuracy.
        source
            Of a fit to several sources, the one whose rate is predicted.
        task
            Of a fit to several targets, the one that is predicted, from 0.

        Returns
        -------
        Posterior
            With ``mean``, ``std``, ``interval(level)``, ``quantile(q)``, ``sample(n, seed)`` and
            ``covariance()``. After a fit to a family with a log or logit link, a
            :class:`~deconditional.RatePosterior`, which has ``latent`` for f.
        """
        self.check_fitted()
        array = asked_points(x, self.n_features_in_, getattr(self, "tasks_", None), task)
        if fine_noise and not self.fine_noise:
            raise ValueError("this model has no high-resolution noise; fit with fine_noise=True.")
        support = self.bags_.points.min(0), self.bags_.points.max(0)
        may_round = self.precision == "auto"
        posterior = Posterior(self.fields(features), array, fine_noise, support, may_round)
        families = getattr(self, "families_", None)
        return posterior if families is None else rates_of(posterior, families, source)

    def fields(self, features: int | None = None) -> list[Field]:
        """The posterior of f, once for every draw of the hyper-parameters."""
        fitted = self.check_fitted()
        if features is None:
            return list(fitted.fields)
        check_count("features", features)
        if hasattr(self, "families_"):
            raise ValueError("features is for normal errors; a family is in a basis already.")
        key, n = jax.random.key(self.seed), int(features)
        return fitted.by_draw(
            lambda problem, vector, its, _: problem.fourier_field(
                jnp.asarray(vector), its.weights, its.noise, n, key
            )
        )

    def predict_bags(self, bags: Bags, **options: Any) -> CoarsePosterior:
        """Joint posterior of the means of f over new bags.

        After a fit to a `family`, joint draws over them, a :class:`~deconditional.BagDraws`. They
        are of sums where there is an exposure, and of mean rates where there is none.

        Parameters
        ----------
        bags
            Any new bags.
        options
            After a fit to a family: ``exposure`` or ``trials`` of the new bags, by default
            ``bags.exposure``; ``kind``, ``"mean"`` or ``"sum"``; ``noise=True`` for counts as
            they would be observed, with their own scatter and overdispersion;
            ``effects=True`` for their means with overdispersion alone; ``source``, of several;
            ``n_draws`` (500) and ``seed`` (0). After a fit to several targets, ``task``.
        """
        fitted = self.check_fitted()
        check_bags(bags)
        bags = asked_bags(bags, getattr(self, "tasks_", None), options.pop("task", None))
        if bags.points.shape[1] != self.n_features_in_:
            raise ValueError(
                f"the model was fitted on {self.n_features_in_} covariates; the new bags have "
                f"{bags.points.shape[1]}."
            )
        families = getattr(self, "families_", None)
        if families is not None:
            return cast(CoarsePosterior, over_bags(fitted, families, bags, **options))
        if options:
            raise TypeError(f"{next(iter(options))} is an option of models that have a family.")
        found = fitted.moments(lambda _, __, ___, field: field.bag_moments(bags))
        return CoarsePosterior(*found)

    def predict_held_out(self, folds: npt.ArrayLike) -> Gaussians:
        """Predict every observation from those of the other folds, noise included.

        Hyper-parameters stay as they were learnt from all observations, so this is quick, and a
        little kinder than fitting anew without each fold. After a fit to a `family` or to several
        sources every fold is solved, and the answer a :class:`~deconditional.BagDraws`.

        Parameters
        ----------
        folds : (M,)
            The fold of every observation.
        """
        fitted = self.check_fitted()
        m, labels = len(fitted.z), np.asarray(folds)
        if labels.shape != (m,) or len(np.unique(labels)) < 2:
            raise ValueError(f"folds must divide the {m} observations into two parts or more.")
        if (families := getattr(self, "families_", None)) is not None:
            which = np.unique(labels, return_inverse=True)[1].ravel()
            draws = held_out_draws(fitted, families, self.bags_, which, self.seed)
            return cast(Gaussians, draws)
        found = fitted.moments(lambda problem, _, its, __: problem.held_out(its, labels))
        return Gaussians(*found)

    def predict_from_means(self, shares: npt.ArrayLike) -> Gaussians:
        """Predict every observation from weighted means of the observations, noise included.

        With groups of neighbours this is downscaling one scale up, where the truth is known.
        Hyper-parameters stay as they were learnt from all observations.

        Parameters
        ----------
        shares : (G, M)
            The weights of each mean.
        """
        if hasattr(self, "families_"):
            raise ValueError(
                "predictions from means of observations are for normal errors alone; "
                "predict_held_out has those of a family."
            )
        fitted = self.check_fitted()
        m, weights = len(fitted.z), np.asarray(shares, dtype=float)
        if weights.ndim != 2 or weights.shape[1] != m:
            raise ValueError(f"shares must have a column for each of the {m} observations.")
        found = fitted.moments(lambda problem, _, its, __: problem.from_means(its, weights))
        return Gaussians(*found)

    def _summary(self) -> dict[str, Any]:
        return {"observations": len(self.check_fitted().z), "bags": repr(self.bags_)}

    def __loaded__(self) -> Self:
        """The model itself, once its posterior is known to be one of its covariates."""
        self.check_options()
        if not hasattr(self, "fitted_"):  # a part of another, to be fitted by it
            return self
        x, fields = jnp.zeros((1, self.bags_.points.shape[1])), self.fitted_.fields
        shapes = {str(jax.tree.map(np.shape, field)) for field in fields}
        mean, _ = eqx.filter_eval_shape(lambda field: field.moments(x), fields[0])
        if len(shapes) > 1 or mean.shape != (1,) or self.n_features_in_ != x.shape[1]:
            raise ValueError("its posterior is not one of its covariates")
        return self

    def check_fitted(self) -> Fitted:
        """What was learnt; an error before `fit`."""
        if not hasattr(self, "fitted_"):
            raise errors.NotFittedError(
                f"this {type(self).__name__} is not fitted; call fit first."
            )
        return self.fitted_


def learnt(model: Model, data: Data, mediation: Observation, kept: CheckpointPart | None) -> Model:
    """Fit a model to data whose observations see the bags in one way."""
    began = time.perf_counter()
    posed = pose(model, problem_parts(data, mediation, model), data.bags, model.seed)
    at = stages(model, data.bags, posed.problem, kept)
    fitted = learn(posed.problem, learning(model, posed), at)
    return take(model, data.bags, fitted, posed, at, began)


def learning(model: BagModel, posed: Posed) -> Learning:
    """Options of learning that a model asks for."""
    return Learning(
        method=model.method,
        method_options=model.method_options,
        n_restarts=model.n_restarts,
        max_iter=model.max_iter,
        seed=model.seed,
        climb=posed.climb,
        starts=own_starts(posed.problem, model),
    )


def stages(
    model: BagModel, bags: Bags, problem: Any, kept: CheckpointPart | None
) -> CheckpointPart:
    """The part of a checkpoint in which the stages of one fit keep how far they are."""
    if kept is None:
        return CheckpointPart()
    return CheckpointPart(kept.file, kept.prefix, identity(model, bags, problem))


def identity(model: BagModel, bags: Bags, problem: Any) -> str:
    """What a checkpoint has to agree with: data, model, options and version.

    How bags are laid out is the machine's business; all else that the problem is made of counts.
    """

    def is_layout(node: Any) -> bool:
        return isinstance(node, Layout)

    rest = jax.tree.map(lambda x: None if is_layout(x) else x, problem, is_leaf=is_layout)
    leaves, structure = jax.tree.flatten(rest)
    return digest(
        f"{VERSION} {type(model).__name__} {plain(model.get_params(deep=False))}",
        re.sub(r" at 0x\w+", "", str(structure)),
        *(bags.points, bags.bag, bags.weights),
        *(
            jax.random.key_data(leaf)
            if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else leaf
            if eqx.is_array_like(leaf)
            else plain(leaf)
            for leaf in leaves
        ),
    )
