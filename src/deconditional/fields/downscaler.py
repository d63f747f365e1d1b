"""Downscaling of gridded fields: xarray in, xarray out."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import xarray as xr
from gpjax.kernels.base import AbstractKernel
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import KNeighborsRegressor

from deconditional.bags import Bags
from deconditional.errors import Caution, FitWarning, UsageError, tell_of
from deconditional.fields import result as results
from deconditional.fields.consistency import ConsistentPosterior
from deconditional.fields.description import described
from deconditional.fields.estimators import (
    BASELINES,
    FIELD_KERNELS,
    MODELS,
    Recipe,
    candidates,
    condensed_size,
)
from deconditional.fields.files import check_output, write_fields
from deconditional.fields.fine_points import (
    FinePoints,
    Members,
    counted_areas,
    fine_points,
    members,
)
from deconditional.fields.grids import Grid, find_grid
from deconditional.fields.meanings import parameter_meanings
from deconditional.fields.pairing import Pairing, is_chunked, pair
from deconditional.fields.parts import Reader
from deconditional.fields.prediction import EXTRAPOLATION, Predictor, layers
from deconditional.fields.question import Question
from deconditional.fields.scaling import InputScaling, Spread, TargetScaling
from deconditional.fields.streaming import stream
from deconditional.fields.units import time_places
from deconditional.fields.validation import Blocks, HeldOut, blocks, compared
from deconditional.fields.whole_bags import averager
from deconditional.fitting.interrupts import Stop, current, stoppable
from deconditional.fitting.progress import show
from deconditional.fitting.report import FitReport
from deconditional.inference.posterior import Gaussians, Posterior, outside_range
from deconditional.models import MeasuredGP, VarCentroidGP
from deconditional.models.cautions import extrapolated
from deconditional.models.regression import bag_gap
from deconditional.models.variational import VariationalModel
from deconditional.saving.api import FittedData, Savable
from deconditional.saving.resume import Checkpoint, Part, opened, whole, within

__all__ = ["Downscaler", "FitData", "quantile_levels"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LOG_PASSES = 6
"""Most fits of a logarithmic field, each with a better idea of the spread within bags."""

LOG_TOLERANCE = 0.01
"""Change of the logarithms of the observations that is worth another fit."""


@dataclass(frozen=True)
class FitData:
    """What a model is fitted to, in standardised units; `used` are the observations it takes."""

    bags: Bags
    z: Floats
    mediator: Floats | None
    own_bag: Ints | None
    used: Ints
    bag_of: Ints

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of ``fit`` beyond bags and z."""
        found: dict[str, Any] = {} if self.mediator is None else {"mediator": self.mediator}
        return found if self.own_bag is None else {**found, "own_bag": self.own_bag}


class Downscaler(Savable, BaseEstimator):
    """Fine field of a coarse target, from fine covariates that need not be in the same cells.

    Parameters
    ----------
    target
        The variable of the coarse data that is wanted on the fine grid.
    covariates
        Variables of the fine data it is predicted from.
    mediators
        Variables of the coarse data that link observations to covariates where the two are not in
        the same cells and times. A mediator that the fine data has too is averaged from there
        where the coarse data lacks it.
    model
        ``"auto"``, one of ``mediated cmp s-cmp u-cmp varcmp bagg-gp vbagg gpr vargpr``, or an
        estimator of this package. Auto takes Bagg-GP for matched data and
        :class:`~deconditional.MediatedGP` for other data; beyond 3000 bags it takes models with
        inducing points, and compares two of them by blocked cross-validation on unmatched data.
    kernel, mediator_kernel
        Any GPJax kernels. `kernel` may be a name: ``"smooth"`` is a Matérn-3/2 of position plus a
        Gaussian of the covariates, ``"rough"``, the default, adds a Matérn-1/2 of position.
        `mediator_kernel` is by default as smooth. Inputs are position, on the unit sphere (3) or in
        the plane (2), then the variables in the order given, standardised.
    position
        Use position as covariate and as mediator too.
    transform
        ``"log"`` for positive, skewed fields: the process is that of the logarithm.
    bounds
        Least and greatest physical value, as in ``(0, None)``; predictions stay within.
    consistency
        ``"exact"`` makes area means of the posterior mean equal the observed coarse values,
        wherever predicted cells cover at least `min_cover` of an observation's cell.
    trend, fine_noise
        As in :class:`~deconditional.BaggGP`; ``"auto"`` is constant for conditional mean
        processes (cmp, s-cmp, u-cmp, varcmp) and linear for all others.
    points_per_bag
        Fine cells that stand for a coarse cell while learning, see
        :meth:`~deconditional.Bags.condense`; ``"auto"`` goes by size, None keeps all.
    mask
        A fine variable between 0 and 1: the share of a cell that counts, such as land.
    min_cover
        Least share of a coarse cell that fine cells with covariates must cover.
    dims
        Names of dimensions, ``{"y": ..., "x": ..., "time": ...}``, where they cannot be found.
    folds
        Of the cross-validation behind ``"auto"``.
    n_restarts, seed
        Of the fits.
    model_options
        Further arguments of the model, as in ``{"n_inducing": 800}``.
    progress
        Show how far the work is.

    Attributes
    ----------
    model_, model_name_
        The fitted model and its name.
    candidates_
        All models that were fitted, by name.
    pairing_
        Bags and observations; ``pairing_.understood`` has them in words.
    comparison_
        Cross-validation of the candidates; see :class:`~deconditional.Comparison`.
    parameters_
        Name, value, unit and meaning of every learnt parameter.
    timings_
        Seconds by stage.

    Examples
    --------
    >>> import deconditional as dc
    >>> fields = dc.datasets.synthetic_fields(n_lat=12, n_lon=24)
    >>> data = dc.datasets.split_cells(fields, "tas", ["altitude"], ["water_vapour"], block=2)
    >>> downscaler = dc.Downscaler("tas", ["altitude"], ["water_vapour"], model="gpr")
    >>> out = downscaler.fit(data.fine, data.coarse).predict(data.everywhere)
    >>> out["mean"].dims, out["mean"].attrs["units"]
    (('lat', 'lon'), 'K')
    """

    fit_report_: FitReport

    def __init__(
        self,
        target: str,
        covariates: Sequence[str] = (),
        mediators: Sequence[str] = (),
        *,
        model: Any = "auto",
        kernel: AbstractKernel | str | None = None,
        mediator_kernel: AbstractKernel | None = None,
        position: bool = True,
        transform: str | None = None,
        bounds: tuple[float | None, float | None] | None = None,
        consistency: str | None = None,
        trend: str = "auto",
        fine_noise: bool = False,
        points_per_bag: int | str | None = "auto",
        mask: str | None = None,
        min_cover: float = 0.5,
        dims: Mapping[str, str] | None = None,
        folds: int = 5,
        n_restarts: int = 2,
        model_options: Mapping[str, Any] | None = None,
        seed: int = 0,
        progress: bool = False,
    ):
        self.target = target
        self.covariates = covariates
        self.mediators = mediators
        self.model = model
        self.kernel = kernel
        self.mediator_kernel = mediator_kernel
        self.position = position
        self.transform = transform
        self.bounds = bounds
        self.consistency = consistency
        self.trend = trend
        self.fine_noise = fine_noise
        self.points_per_bag = points_per_bag
        self.mask = mask
        self.min_cover = min_cover
        self.dims = dims
        self.folds = folds
        self.n_restarts = n_restarts
        self.model_options = model_options
        self.seed = seed
        self.progress = progress

    # ------------------------------------------------------------------ what is asked

    def question(self) -> Question:
        """The variables and their parts, checked."""
        if not isinstance(self.target, str) or not self.target:
            raise UsageError("target must be the name of a variable of the coarse data.")
        if not 0 < self.min_cover <= 1:
            raise UsageError(f"min_cover is a share between 0 and 1, not {self.min_cover!r}.")
        if self.consistency not in (None, "exact"):
            raise UsageError(f"consistency must be 'exact' or nothing, not {self.consistency!r}.")
        if isinstance(self.model, str) and self.model not in ("auto", *MODELS):
            raise UsageError(
                f"there is no model {self.model!r}; choose auto or one of {', '.join(MODELS)}."
            )
        if isinstance(self.kernel, str) and self.kernel not in FIELD_KERNELS:
            raise UsageError(
                f"there is no kernel {self.kernel!r}; choose one of {', '.join(FIELD_KERNELS)}, or "
                "give a GPJax kernel."
            )
        for part in ("kernel", "mediator_kernel"):
            if getattr(self, part) is not None and not isinstance(self.model, str):
                raise UsageError(f"{part} belongs to named models; give the estimator its own.")
        if isinstance(self.mediator_kernel, str):
            raise UsageError("mediator_kernel must be a GPJax kernel; it has no names.")
        names = {}
        for part in ("covariates", "mediators"):
            given = getattr(self, part)
            if not isinstance(given, Iterable):
                raise UsageError(
                    f"{part} must be names of variables, not {given!r}; write {part}=['a', 'b']."
                )
            listed = (given,) if isinstance(given, str) else tuple(given)
            twice = [name for name in listed if listed.count(name) > 1]
            if twice:
                raise UsageError(f"{twice[0]!r} is named twice among the {part}; once is enough.")
            names[part] = listed
        return Question(
            target=self.target,
            position=bool(self.position),
            mask=self.mask,
            min_cover=self.min_cover,
            dims=self.dims,
            **names,
        )

    # ------------------------------------------------------------------ learning

    def fit(
        self,
        fine: xr.Dataset,
        coarse: xr.Dataset,
        *,
        checkpoint: str | os.PathLike[str] | Checkpoint | Part | None = None,
    ) -> Self:
        """Learn from fine covariates and coarse observations.

        Ctrl-C ends learning with the best parameters so far; a second one ends the program.

        Parameters
        ----------
        fine
            Covariates on the fine grid, NaN where unknown; with or without time. Dask arrays are
            read twice, chunk by chunk, and never held as a whole.
        coarse
            Target and mediators on the coarse grid, NaN where unknown; with or without time.
        checkpoint
            A file that keeps how far learning is. The same call goes on from there if it was
            stopped; a fit that ends removes it. :class:`~deconditional.Checkpoint` has options.
        """
        began = time.perf_counter()
        with opened(checkpoint) as kept, show(self.progress) as stage:
            stage("pairing fine and coarse cells")
            self._prepare(fine, coarse)
            self.timings_ = {"pairing": time.perf_counter() - began}
            with stoppable() as stop:
                self._learn(stage, kept, stop)
        return self

    def _learn(self, stage: Callable[[str], None], kept: Part | None, stop: Stop) -> None:
        """Fit the candidates and take one of them."""
        held_out = []
        fitted = {}
        for name in self._names():
            stage(f"learning {name}")
            began = time.perf_counter()
            data = self._data(name)
            model = self._fitted_model(name, data, data.z, **within(kept, name))
            seconds = time.perf_counter() - began
            self.timings_[f"learning {name}"] = seconds
            fitted[name] = (model, data)
            if self._blocks is not None:
                predicted = model.predict_held_out(self._blocks.fold[data.used])
                held_out.append(HeldOut(name, predicted, data.z, seconds))
            if stop.used:
                break
        self.comparison_ = None
        chosen = next(iter(fitted))
        if held_out:
            held_out = [_with_gap(each, fitted) for each in held_out]
            assert self._blocks is not None
            parts = self._blocks.of(next(iter(fitted.values()))[1].used)
            self.comparison_ = compared(held_out, self.target_scaling_.scale, parts)
            chosen = self.comparison_.chosen
        self.candidates_ = {name: model for name, (model, _) in fitted.items()}
        if self.target_scaling_.log:
            stage("correcting for the logarithm")
        self._adopt(chosen, kept)
        if stop.used:
            self._say_interrupted([name for name in self._names() if name not in fitted])

    def _say_interrupted(self, untried: Sequence[str]) -> None:
        """What an interrupt left undone, beyond the fit that it ended."""
        new = []
        if untried:
            new.append(
                f"the interrupt left {', '.join(untried)} untried, so {self.model_name_} was not "
                "chosen by comparison. Fit again, or name a model."
            )
        if self.fit_report_.converged:
            new.append(
                "the correction for the logarithm was interrupted and is that of an earlier pass. "
                "Fit again for more."
            )
        notes = (*new, *self.fit_report_.notes)
        self.fit_report_ = replace(self.fit_report_, converged=False, notes=notes)
        tell_of([Caution(FitWarning, note) for note in new])

    def using(self, name: str) -> Self:
        """The same, with another of the candidates that were fitted as its model."""
        self._check_fitted()
        if name not in self.candidates_:
            raise UsageError(
                f"{name!r} was not fitted; the candidates are {', '.join(self.candidates_)}."
            )
        other = copy(self)
        other._adopt(name)
        return other

    def _adopt(self, name: str, kept: Part | None = None) -> None:
        """Take one of the candidates as the model."""
        self.model_name_, self.model_ = name, self.candidates_[name]
        if self.target_scaling_.log:
            began = time.perf_counter()
            self.model_ = self._with_spread(name, self.model_, self._data(name), kept)
            seconds = time.perf_counter() - began
            self.timings_ = {**self.timings_, "correcting for the logarithm": seconds}
        self.fit_report_ = self.model_.fit_report_
        self.parameters_ = self._meanings()

    def understand(self, fine: xr.Dataset, coarse: xr.Dataset) -> Pairing:
        """Bags and observations of two datasets, before anything is learnt from them.

        ``understand(fine, coarse).understood`` says in words what was found. A fit to the same two
        datasets does not look for it again.
        """
        question = self.question()
        self._paired = (fine, coarse, pair(fine, coarse, question))
        return self._paired[2]

    def _pair(self, fine: xr.Dataset, coarse: xr.Dataset) -> Pairing:
        question = self.question()
        known = self.__dict__.pop("_paired", None)
        if known is None or known[0] is not fine or known[1] is not coarse:
            return pair(fine, coarse, question)
        return known[2] if known[2].question == question else pair(fine, coarse, question)

    def _prepare(self, fine: xr.Dataset, coarse: xr.Dataset) -> None:
        self.pairing_ = pairing = self._pair(fine, coarse)
        self.target_scaling_ = TargetScaling.of(pairing.z, self.transform, self.bounds)
        spherical = pairing.coarse.spherical
        self.input_scaling_ = InputScaling.of(pairing.fine.spread, pairing.n_position, spherical)
        both = np.concatenate([pairing.bag_mediator, pairing.mediator])
        known = both[np.isfinite(both).all(1)]
        known = known if len(known) else np.zeros((1, both.shape[1]))
        self.mediator_scaling_ = InputScaling.of(Spread.of(known), pairing.n_position, spherical)
        self.coarse_ = coarse[[self.target]]
        self._blocks: Blocks | None = None
        n_places = len(np.unique(pairing.observed_unit % pairing.coarse.n_cells))
        if len(pairing.z) >= 2 * self.folds and n_places > 1:
            parts = blocks(pairing, "space", self.folds, self.seed)
            self._blocks = parts._replace(how=f"{parts.how}, parameters held")
        elif self.model == "auto" and len(self._names()) > 1:
            raise UsageError(
                f"{len(pairing.z)} observations in {n_places} cell(s) are too few to compare "
                f"models by {self.folds}-fold cross-validation; name a model (u-cmp, say) or use "
                "fewer folds."
            )

    def _names(self) -> tuple[str, ...]:
        if not isinstance(self.model, str):
            return (type(self.model).__name__,)
        if self.model != "auto":
            return (self.model,)
        p = self.pairing_
        return candidates(p.matching, p.n_bags, len(p.z))

    def _recipe(self) -> Recipe:
        question = self.pairing_.question
        return Recipe(
            kernel="rough" if self.kernel is None else self.kernel,
            mediator_kernel=self.mediator_kernel,
            n_position=self.pairing_.n_position,
            n_covariates=len(question.covariates),
            n_mediators=len(question.mediators),
            trend=self.trend,
            fine_noise=self.fine_noise,
            n_restarts=self.n_restarts,
            seed=self.seed,
            options=dict(self.model_options or {}),
        )

    def is_matched(self, name: str) -> bool:
        """Whether the model sees every observation as the mean of a bag."""
        takes_bags = name in BASELINES or (
            not isinstance(self.model, str) and not _takes_mediator(self.model)
        )
        return takes_bags and self.pairing_.matching == "matched"

    def _data(self, name: str) -> FitData:
        p = self.pairing_
        z = self.target_scaling_.standardised(p.z)
        size = self.points_per_bag
        if size == "auto":
            size = condensed_size(name, p.n_bags)
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise UsageError(f"points_per_bag must be 'auto', None or a number, not {size!r}.")
        if self.is_matched(name):
            kept = p.own_bag
            return FitData(self._bags(kept, size), z, None, None, np.arange(len(z)), kept)
        kept = np.flatnonzero(np.isfinite(p.bag_mediator).all(1))
        if not kept.size:
            raise UsageError(f"no bag has mediators, which {name} needs; use bagg-gp.")
        place = np.full(p.n_bags + 1, -1)
        place[kept] = np.arange(len(kept))
        own_bag = place[p.own_bag]
        used = np.flatnonzero(np.isfinite(p.mediator).all(1))
        if not used.size:
            raise UsageError(f"no observation has mediators, which {name} needs; use bagg-gp.")
        mediator = self.mediator_scaling_(p.bag_mediator[kept])
        return FitData(
            replace(self._bags(kept, size), mediator=mediator),
            z[used],
            self.mediator_scaling_(p.mediator[used]),
            own_bag[used] if p.matching == "partly matched" else None,
            used,
            kept,
        )

    def _bags(self, which: Ints, size: int | None) -> Bags:
        """Some of the bags as models see them."""
        bags = self.pairing_.reduced_bags(which, size, self.seed)
        return replace(bags, points=self.input_scaling_(bags.points))

    def _fitted_model(
        self, name: str, data: FitData, z: Floats, checkpoint: Part | None = None
    ) -> Any:
        if isinstance(self.model, str):
            model = self._recipe().estimator(name, self.is_matched(name))
        else:
            model = clone(self.model)
        try:
            model.fit(data.bags, z, **data.arguments(), **whole(checkpoint))
        except (TypeError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"{name}: {error}") from error
        self._use_whole_bags(model, data)
        return model

    def _use_whole_bags(self, model: Any, data: FitData) -> None:
        """Give models with inducing points the means over all fine cells of condensed bags."""
        inner = getattr(model, "model_", model)
        of_bags = isinstance(inner, VariationalModel) and not isinstance(inner, VarCentroidGP)
        if of_bags and (self.pairing_.fine.sizes[data.bag_of] > data.bags.sizes).any():
            inner.use_means(averager(self.pairing_, data.bag_of, self.input_scaling_))

    def _with_spread(self, name: str, model: Any, data: FitData, kept: Part | None) -> Any:
        """Fit again with what the mean of logarithms lacks of the logarithm of the mean."""
        scale = self.target_scaling_.scale
        missing = np.zeros(len(data.z))
        for k in range(LOG_PASSES - 1):
            if current().used:
                break
            before, missing = missing, self._at_observations(_log_gap(model, scale) / scale, data)
            if np.sqrt(np.mean((missing - before) ** 2)) * scale < LOG_TOLERANCE:
                break
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FitWarning)
                part = within(kept, f"{name}, correction {k + 1}")
                corrected = self._fitted_model(name, data, data.z - missing, **part)
            if current().used:
                break
            model = corrected
        return model

    @staticmethod
    def _at_observations(per_bag: Floats, data: FitData) -> Floats:
        """A property of bags at the observations: their own bag's, or that of similar mediators."""
        if data.mediator is None:
            return per_bag
        near = KNeighborsRegressor(min(5, len(per_bag)), weights="distance")
        found = near.fit(data.bags.mediator, per_bag).predict(data.mediator)
        if data.own_bag is None:
            return found
        return np.where(data.own_bag >= 0, per_bag[data.own_bag], found)

    def _meanings(self) -> list[dict[str, Any]]:
        question = self.pairing_.question
        learnt, kernels = {}, {}
        stages = [self.model_]
        if hasattr(self.model_, "regressor_"):
            stages = [self.model_.model_]
            first = self.model_.regressor_
            for key, value in first.parameters_.items():
                learnt[f"mediator_{key}" if key.startswith("kernel") else f"mediator.{key}"] = value
            kernels["mediator_kernel"] = first.kernel_
        last = stages[-1]
        learnt.update(last.parameters_)
        if isinstance(last, MeasuredGP):
            learnt["measurement_noise_std"] = learnt.pop("noise_std")
        kernels["kernel"] = last.kernel_
        if hasattr(last, "mediator_kernel_"):
            kernels["mediator_kernel"] = last.mediator_kernel_
        return parameter_meanings(
            learnt,
            kernels,
            {
                "kernel": (self.input_scaling_, question.covariates),
                "mediator_kernel": (self.mediator_scaling_, question.mediators),
            },
            self.pairing_.n_position,
            self.pairing_.coarse.spherical,
            self.target_scaling_,
            str(self.coarse_[question.target].attrs.get("units", "")),
        )

    # ------------------------------------------------------------------ predicting

    def predict(
        self,
        fine: xr.Dataset,
        *,
        quantiles: Sequence[float] = (),
        samples: int = 0,
        features: int | None = None,
        command: str = "dc.Downscaler.predict",
    ) -> xr.Dataset:
        """The posterior of the target on the fine grid.

        Parameters
        ----------
        fine
            Covariates where predictions are wanted: the data of the fit, or any other grid or time.
            Of Dask arrays the result has Dask arrays too, with the same chunks; nothing is computed
            until it is asked for or written.
        quantiles
            Levels between 0 and 1 of the quantiles to add.
        samples
            Number of joint samples of the field to add.
        features
            As in :meth:`~deconditional.BaggGP.predict`.
        command
            What the history says.

        Returns
        -------
        xr.Dataset
            ``mean`` and ``std``, ``quantiles`` and ``samples`` if asked for, ``extrapolation``, a
            flag for cells far from the data (see :attr:`Posterior.extrapolation`), the coarse
            residuals, and what was learnt as attributes.
        """
        self._check_fitted()
        levels = quantile_levels(quantiles)
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 0:
            raise UsageError(f"samples must be a whole number from 0 on, not {samples!r}.")
        grid = self._grid(fine)
        began = time.perf_counter()
        with show(self.progress) as stage:
            stage("predicting")
            if is_chunked(fine, self.pairing_.question):
                out, means = self._lazy(fine, grid, self._predictor(levels, samples, features))
            else:
                out, means = self._at_once(fine, levels, samples, features, stage)
        if levels:
            out = out.assign_coords(quantile=("quantile", np.asarray(levels)))
        bags = np.zeros(self.pairing_.target.size, dtype=bool)
        bags[self.pairing_.bag_unit] = True
        out = out.merge(results.coarse_part(self.coarse_, self.pairing_, means, bags))
        timings = {**self.timings_, "predicting": time.perf_counter() - began}
        found = described(self, out, grid, timings, command)
        if found[EXTRAPOLATION].chunks is None:
            tell_of(extrapolated(**results.extrapolation_summary(found[EXTRAPOLATION].values)))
        return found

    def predict_to(
        self,
        path: str | Path,
        fine: xr.Dataset,
        *,
        quantiles: Sequence[float] = (),
        samples: int = 0,
        features: int | None = None,
        overwrite: bool = False,
        resume: bool = True,
        command: str = "dc.Downscaler.predict_to",
    ) -> Path:
        """Predict and write, in as little memory as a few chunks of the covariates take.

        Of Dask arrays, regions are written one after the other, and a run that was stopped, or
        killed, goes on where it was when the same call is made again: the result is the same.

        Parameters
        ----------
        path
            Ends in ``.nc`` or ``.zarr``. It is there only when it is complete.
        fine, quantiles, samples, features, command
            As in :meth:`predict`.
        overwrite
            Replace what is there.
        resume
            Go on with what a stopped run of the same prediction has left.
        """
        out = check_output(path, overwrite)
        result = self.predict(
            fine, quantiles=quantiles, samples=samples, features=features, command=command
        )
        if result["mean"].chunks is None:
            return write_fields(result, out)
        fields = [name for name in result.data_vars if not str(name).startswith("coarse_")]

        found: list[Caution] = []

        def finish(written: xr.Dataset) -> xr.Dataset:
            rest = result.drop_vars(fields)
            if rest["coarse_mean"].chunks is not None:
                rest = self._with_area_means(rest, fine, written["mean"])
            rest = rest.drop_vars([n for n in rest.coords if n in written.variables]).compute()
            facts = json.loads(result.attrs["deconditional"])
            facts["residuals"] = results.residual_summary(rest["coarse_residual"].values)
            facts["extrapolation"] = results.extrapolation_summary(written[EXTRAPOLATION])
            found.extend(extrapolated(**facts["extrapolation"]))
            return rest.assign_attrs(result.attrs, deconditional=results.as_json(facts))

        with show(self.progress) as stage:
            stage("predicting and writing")
            place = stream(result[fields], out, finish, resume=resume)
        tell_of(found)
        return place

    def _with_area_means(
        self, coarse: xr.Dataset, fine: xr.Dataset, mean: xr.DataArray
    ) -> xr.Dataset:
        """The coarse part of a result, of a mean that has been computed and written."""
        from deconditional.fields.chunked_prediction import area_means, fine_parts

        grid = self._grid(fine)
        reader, parts = self._reader(grid), fine_parts(fine, grid, self.pairing_.question)
        field = mean if grid.time is not None else mean.expand_dims("one")
        field = field.data.rechunk(parts.chunks)
        found = area_means(reader, parts, field, self.pairing_.question.min_cover).compute()
        means = found.reshape(coarse["coarse_mean"].shape)
        left = coarse["coarse_observed"].values - means
        return coarse.assign(
            coarse_mean=coarse["coarse_mean"].copy(data=means),
            coarse_residual=coarse["coarse_residual"].copy(data=left),
        )

    def _grid(self, fine: xr.Dataset) -> Grid:
        """The grid to predict on, once it is known that this is possible."""
        question = self.pairing_.question
        grid = find_grid(fine, question.covariates, "fine", question.dims)
        if grid.spherical != self.pairing_.coarse.spherical:
            raise UsageError(
                "the grid to predict on and that of the fit are not in the same coordinates."
            )
        self.check_consistency(fine)
        return grid

    def check_consistency(self, fine: xr.Dataset) -> None:
        """Raise where area means cannot be made consistent on this data; no fit is needed."""
        if self.consistency == "exact" and is_chunked(fine, self.question()):
            raise UsageError(
                "consistency='exact' moves all cells at once, so it needs the fine data in memory: "
                "predict on ds.load(), or on one region or time after the other."
            )

    def _predictor(self, levels: Sequence[float], samples: int, features: int | None) -> Predictor:
        anywhere = np.zeros((1, len(self.input_scaling_.centre)))
        posterior = self.model_.predict(anywhere, fine_noise=self.fine_noise, features=features)
        return Predictor(
            fields=posterior.fields,
            fine_noise=self.fine_noise,
            inputs=self.input_scaling_,
            target=self.target_scaling_,
            support=self._support(),
            position=self.pairing_.question.position,
            levels=tuple(levels),
            n_samples=samples,
            seed=self.seed,
        )

    def _support(self) -> tuple[Floats, Floats]:
        """Least and greatest value of every input over all points of the bags, standardised."""
        spread = self.pairing_.fine.spread
        return self.input_scaling_(spread.low), self.input_scaling_(spread.high)

    def _flags(self, posterior: Any, x: Floats) -> npt.NDArray[np.int8]:
        """Which points are far from the data; see :attr:`Posterior.extrapolation`."""
        if not isinstance(posterior, Posterior):  # of a model that tells no prior variance
            return outside_range(x, *self._support()).astype(np.int8)
        posterior.support = self._support()
        return posterior.extrapolation

    def _at_once(
        self,
        fine: xr.Dataset,
        levels: Sequence[float],
        samples: int,
        features: int | None,
        stage: Callable[[str], None],
    ) -> tuple[xr.Dataset, Floats]:
        """All of the posterior in memory, and its area means."""
        points = fine_points(fine, self.pairing_.question)
        x = self.input_scaling_(points.rows(self.pairing_.question.position))
        posterior = self.model_.predict(x, fine_noise=self.fine_noise, features=features)
        inside = self._members(points)
        marginals: Gaussians = posterior
        if self.consistency == "exact":
            stage("making area means consistent")
            marginals = self._consistent(posterior, x, inside)
        found = layers(marginals, self.target_scaling_, levels)
        found[EXTRAPOLATION] = ((), self._flags(posterior, x))
        if samples:
            stage(f"drawing {samples} samples")
            draws = marginals.sample(samples, self.seed)  # type: ignore[attr-defined]
            found["samples"] = (("sample",), self.target_scaling_.physical(draws))
        out = results.as_dataset(fine, points, found)
        return out, _area_means(inside, found["mean"][1], self.pairing_.target.size)

    def _lazy(self, fine: xr.Dataset, grid: Grid, predictor: Predictor) -> tuple[xr.Dataset, Any]:
        """The posterior, and its area means, as Dask arrays with the chunks of the covariates."""
        from deconditional.fields.chunked_prediction import area_means, fine_parts, predicted

        question = self.pairing_.question
        reader, parts = self._reader(grid), fine_parts(fine, grid, question)
        found = predicted(predictor, reader, parts)
        out = results.chunked_dataset(fine, grid, found)
        if self._unit_time(grid) is None or not reader.overlaps:
            return out, np.full(self.pairing_.target.size, np.nan)
        return out, area_means(reader, parts, found["mean"][1], question.min_cover)

    def _reader(self, grid: Grid) -> Reader:
        p = self.pairing_
        unit_time = self._unit_time(grid)
        if unit_time is None:
            unit_time = np.full(grid.n_times, -1)
        return Reader(grid, p.coarse, p.question, unit_time, p.target.size // p.coarse.n_cells)

    def _fitted_data(self) -> FittedData:
        self._check_fitted()
        p = self.pairing_
        facts = {
            "target": self.target,
            "units": str(self.coarse_[p.question.target].attrs.get("units", "")),
            "model": self.model_name_,
            "understood": dict(p.understood),
            "observations": len(p.z),
        }
        return FittedData(facts, [*p.bags.arrays, p.bag_mediator, p.z, p.mediator, p.own_bag])

    def _check_fitted(self) -> None:
        if not hasattr(self, "model_"):
            raise NotFittedError("this Downscaler is not fitted; call fit first.")

    def _members(self, points: FinePoints) -> Members | None:
        """Which predicted cells make up which units; None where the grids do not meet."""
        p = self.pairing_
        try:
            areas, whole = counted_areas(points, p.coarse)
        except UsageError:
            return None
        unit_time = self._unit_time(points.grid)
        if unit_time is None:
            return None
        n_times = p.target.size // p.coarse.n_cells
        found = members(points, unit_time, n_times, areas, whole)
        return found.well_covered(p.question.min_cover)

    def _unit_time(self, grid: Grid) -> Ints | None:
        """The unit time of every time to predict at, -1 where there is none; None if unknown."""
        times = self.pairing_.times
        if times is None:
            return np.zeros(grid.n_times, dtype=np.int64)
        return None if grid.times is None else time_places(grid.times, times)

    def _consistent(self, posterior: Any, x: Floats, inside: Members | None) -> Gaussians:
        p = self.pairing_
        wanted = None
        if inside is not None:
            wanted = np.isfinite(p.target[inside.unit])
        if inside is None or wanted is None or not wanted.any():
            raise UsageError(
                "consistency='exact' found no observed coarse cell that the predicted cells cover; "
                "leave it out."
            )
        units, cell = np.unique(inside.unit[wanted], return_inverse=True)
        row, area = inside.row[wanted], inside.area[wanted]
        weights = area / np.bincount(cell, area)[cell]
        cells = Bags(
            points=x[row],
            bag=cell.astype(np.int64),
            weights=weights,
            ids=tuple(units.tolist()),
            mediator=None,
            point=row,
        )
        size = condensed_size("bagg-gp", len(units))
        shares = csr_array((weights, (cell, row)), shape=(len(units), len(x)))
        return ConsistentPosterior(
            posterior,
            cells.condense(size, self.seed),
            shares,
            p.target[units],
            self.target_scaling_,
        )


def _with_gap(each: HeldOut, fitted: Mapping[str, tuple[Any, FitData]]) -> HeldOut:
    """With the distance of bag means from a regression on mediators, if a model has made one."""
    regressor = next((m.regressor_ for m, _ in fitted.values() if hasattr(m, "regressor_")), None)
    model, data = fitted[each.model]
    if regressor is None or data.bags.mediator is None:
        return each
    means = data.bags.means(model.predict(data.bags.points).mean)
    return replace(each, bag_gap=bag_gap(regressor, data.bags.mediator, means))


def _takes_mediator(model: Any) -> bool:
    return hasattr(model, "mediator_kernel")


def quantile_levels(quantiles: Sequence[float]) -> list[float]:
    """Levels in order, each once; raises where one lies outside 0 to 1."""
    try:
        levels = [float(q) for q in np.ravel(np.asarray(quantiles, dtype=float))]
    except (TypeError, ValueError):
        raise UsageError(
            f"quantiles must be numbers between 0 and 1, not {quantiles!r}; write "
            "quantiles=[0.05, 0.5, 0.95]."
        ) from None
    if any(not 0 < q < 1 for q in levels):
        raise UsageError(f"quantiles lie strictly between 0 and 1, not {levels}.")
    return sorted(set(levels))


def _area_means(inside: Members | None, field: Floats, n_units: int) -> Floats:
    if inside is None:
        return np.full(n_units, np.nan)
    total = np.bincount(inside.unit, inside.area, minlength=n_units)
    sums = np.bincount(inside.unit, inside.area * field[inside.row], minlength=n_units)
    return np.where(total > 0, sums / np.where(total > 0, total, 1.0), np.nan)


def _log_gap(model: Any, scale: float) -> Floats:
    """For every bag, log of the mean of exp(f) less the mean of f, in units of the logarithm."""
    bags = getattr(model, "model_", model).bags_
    post = model.predict(bags.points)
    mean, variance = scale * post.mean, scale**2 * post.variance
    centre = bags.means(mean)
    spread = np.exp(mean - centre[bags.bag] + 0.5 * variance)
    return np.log(bags.means(spread))
