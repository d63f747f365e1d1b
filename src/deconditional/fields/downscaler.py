"""Downscaling of gridded fields: xarray in, xarray out."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import xarray as xr
from sklearn.exceptions import NotFittedError

from deconditional.errors import UsageError, tell_of
from deconditional.fields.description import meanings_of
from deconditional.fields.fine_bags import FineBags
from deconditional.fields.io import check_output
from deconditional.fields.learn import Learner, interrupted
from deconditional.fields.options import Options
from deconditional.fields.pair import Pairing, pair
from deconditional.fields.predict import (
    Together,
    Wanted,
    exceedance_levels,
    parts_of,
    quantile_levels,
)
from deconditional.fields.problem import Problem
from deconditional.fields.result import Answer
from deconditional.fields.scaling import InputScaling, TargetScaling
from deconditional.fields.series import Series, Windows
from deconditional.fields.sides import CoarseSide, FineSide, two_sides
from deconditional.fields.validation import MIXTURE
from deconditional.fitting.interrupts import stoppable
from deconditional.fitting.progress import show
from deconditional.fitting.report import FitReport
from deconditional.saving.api import Savable
from deconditional.saving.resume import Checkpoint, CheckpointPart, opened


class Downscaler(Savable, Options):
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
        estimator of this package. Auto takes a mixture of kriging and Bagg-GP for matched data and
        mostly :class:`~deconditional.MediatedGP` for other data; beyond 3000 bags it takes models
        with inducing points. See :doc:`choosing`.
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
        processes (cmp, s-cmp, u-cmp, varcmp), linear in the covariates for models of matched data
        (position and time are in the kernel), and linear in all inputs for `mediated`.
    points_per_bag
        Fine cells for a coarse one while learning, see :meth:`~deconditional.Bags.condense`;
        ``"auto"`` goes by size, None keeps all.
    mask
        A fine variable between 0 and 1: the share of a cell that counts, such as land.
    min_cover
        Least share of a coarse cell that fine cells with covariates must cover.
    kind
        What the target of a cell or polygon is: the ``"mean"`` of the field over it, or the
        ``"sum"``. Of polygons it has to be said; of cells it is the mean. Of sums the field is the
        target per square kilometre, or per unit of exposure.
    exposure
        A fine variable with the amount in every cell, such as the number of people: means are
        weighted by it. A cell where it is missing has none.
    family
        How observations scatter about their means where these are not normal: ``dc.Poisson(
        exposure="population")`` for cases, ``dc.Binomial(trials="tested")`` for positive tests,
        and others. The exposure is a fine variable, an amount in every cell, or a column of the
        polygons, an amount of each, as trials are. The field is a rate then.
    dims
        Names of dimensions, ``{"y": ..., "x": ..., "time": ...}``, where they cannot be found.
    time
        How times hang together: ``"smooth"``, ``"independent"``, or ``"ignore"``, which takes
        means over them.
    window
        Which fine times a coarse value is the mean over: its ``"day"``, ``"month"``, ``"year"``, or
        ``"none"``, its own time. By default what bounds of times say, or months that differ in day.
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
        The fitted model and its name, or all of them and ``"mixture"``.
    candidates_, data_
        All models that were fitted, and the data they were fitted to, by name.
    learner_
        All that comes before learning: what is fitted to, what all candidates share, folds.
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
    parameters_: list[dict[str, Any]]

    # ------------------------------------------------------------------ learning

    def understand(self, fine: xr.Dataset, coarse: xr.Dataset) -> Pairing:
        """Bags and observations of two datasets, before anything is learnt from them.

        ``understand(fine, coarse).understood`` says in words what was found.
        """
        learner = self.prepare(*two_sides(fine, coarse, self.question()))
        pairing = learner.problem.pairing
        return pairing if learner.series is None else learner.series.overview(pairing)

    def prepare(self, fine: FineSide, coarse: CoarseSide) -> Learner:
        """All that comes before learning: the two sides paired and scaled, candidates, folds."""
        began = time.perf_counter()
        with show(self.progress) as stage:
            stage("pairing fine and coarse cells")
            series = self.series(fine, coarse)
            pairing, bags = pair(*((fine, coarse) if series is None else series.sample(self.seed)))
            problem = Problem.of(pairing, coarse.dataset, self.transform, self.bounds, fine.means)
            recipe = self.recipe(pairing, series is not None and not series.is_short)
            learner = Learner.of(problem, recipe, bags, self.folds)
        return replace(learner, series=series, side=fine, seconds=time.perf_counter() - began)

    def fit(
        self,
        fine: xr.Dataset,
        coarse: xr.Dataset,
        *,
        checkpoint: str | os.PathLike[str] | Checkpoint | CheckpointPart | None = None,
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
        learner = self.prepare(*two_sides(fine, coarse, self.question()))
        return self.learn(learner, checkpoint=checkpoint)

    def learn(
        self,
        learner: Learner,
        *,
        checkpoint: str | os.PathLike[str] | Checkpoint | CheckpointPart | None = None,
    ) -> Self:
        """Fit the candidates of what was prepared, and take one of them; see :meth:`fit`."""
        with opened(checkpoint) as kept, show(self.progress) as stage, stoppable() as stop:
            learnt = learner.learn(stage, kept, stop)
            self.learner_ = learner
            self.candidates_, self.data_ = learnt.models, learnt.data
            self.comparison_ = learnt.comparison
            self.timings_ = {"pairing": learner.seconds, **learnt.seconds}
            tell_of([] if learnt.comparison is None else learnt.comparison.cautions)
            if self.target_scaling_.log:
                stage("correcting for the logarithm")
            self._adopt(learnt.chosen, kept)
            if stop.used:
                new = interrupted(learnt, self.model_name_, self.fit_report_.converged)
                notes = (*(caution.text for caution in new), *self.fit_report_.notes)
                self.fit_report_ = replace(self.fit_report_, converged=False, notes=notes)
                tell_of(new)
        return self

    def using(self, name: str) -> Self:
        """Copy of the downscaler whose model is another of the candidates that were fitted."""
        self._check_fitted()
        among = [*self.candidates_, *({MIXTURE} & {self.model_name_})]
        if name not in among:
            raise UsageError(f"{name!r} was not fitted; the candidates are {', '.join(among)}.")
        other = copy(self)
        other._adopt(name)
        return other

    def _adopt(self, name: str, kept: CheckpointPart | None = None) -> None:
        """Take one of the candidates as the model."""
        began, table, self.model_name_ = time.perf_counter(), self.comparison_, name
        shares = {name: 1} if table is None else table.shares(name)
        self.model_ = self.learner_.together(shares, self.candidates_, self.data_, kept)
        if self.target_scaling_.log:
            seconds = time.perf_counter() - began
            self.timings_ = {**self.timings_, "correcting for the logarithm": seconds}
        main = getattr(self.model_, "heaviest", self.model_)
        self.fit_report_ = main.fit_report_
        self.parameters_ = meanings_of(main, self.learner_.problem)

    # ------------------------------------------------------------------ what was learnt

    @property
    def pairing_(self) -> Pairing:
        """Pairing of bags and observations that was learnt from."""
        return self.learner_.problem.pairing

    @property
    def target_scaling_(self) -> TargetScaling:
        """Between the target's units and those of the process."""
        return self.learner_.problem.target

    @property
    def input_scaling_(self) -> InputScaling:
        """Between positions and covariates and the inputs of the process."""
        return self.learner_.problem.inputs

    def _check_fitted(self) -> None:
        if "model_" not in vars(self):
            raise NotFittedError("this Downscaler is not fitted; call fit first.")

    # ------------------------------------------------------------------ predicting

    def predict(
        self,
        fine: xr.Dataset | FineSide,
        *,
        quantiles: Sequence[float] = (),
        samples: int = 0,
        exceedance: Sequence[float] = (),
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
        exceedance
            Levels of the target: the probability that each cell is above them is added.
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
        wanted = (quantiles, samples, exceedance, features)
        return self._answer(fine, command, *wanted).dataset()

    def predict_to(
        self,
        path: str | Path,
        fine: xr.Dataset | FineSide,
        *,
        quantiles: Sequence[float] = (),
        samples: int = 0,
        exceedance: Sequence[float] = (),
        features: int | None = None,
        overwrite: bool = False,
        command: str = "dc.Downscaler.predict_to",
    ) -> Path:
        """Predict and write, in as little memory as a few chunks of the covariates take.

        Of Dask arrays, regions are written one after the other, and a run that was stopped, or
        killed, goes on where it was when the same call is made again: the result is the same.

        Parameters
        ----------
        path
            Ends in ``.nc`` or ``.zarr``. It is there only when it is complete.
        fine, quantiles, samples, exceedance, features, command
            As in :meth:`predict`.
        overwrite
            Replace what is there.
        """
        self._check_fitted()
        out = check_output(path, overwrite)
        wanted = (quantiles, samples, exceedance, features)
        return self._answer(fine, command, *wanted).write(out)

    def _answer(
        self,
        fine: xr.Dataset | FineSide,
        command: str,
        quantiles: Sequence[float] = (),
        samples: int = 0,
        exceedance: Sequence[float] = (),
        features: int | None = None,
    ) -> Answer:
        """What there is to answer from, once it is known that one can predict there."""
        self._check_fitted()
        wanted = Wanted(
            target=self.target_scaling_,
            levels=quantile_levels(quantiles),
            n_samples=samples,
            seed=self.seed,
            fine_noise=self.fine_noise,
            features=features,
            consistency=self.consistency,
            above=exceedance_levels(exceedance),
        )
        side = fine if isinstance(fine, FineSide) else FineSide.of(fine, self.pairing_.question)
        self.check_consistency(side)
        learner, problem = self.learner_, self.learner_.problem
        if isinstance(learner.series, Series):
            problem = replace(problem, pairing=learner.series.overview(problem.pairing))
        if self.pairing_.n_time:
            side = side.repeated(problem.pairing.coarse)
        source: Together | Windows
        if learner.series is not None:
            source = Windows.of(learner.series, learner, self.model_name_, self.model_, side)
        else:
            parts, known = parts_of(side, problem), learner.bags
            if isinstance(known, FineBags) and known.parts.same_as(parts):
                parts = known.parts  # with all that has been found out of them since the fit
            source = Together(parts, self.model_, problem)
        return Answer(side, source, wanted, self, problem, command)

    def _summary(self) -> dict[str, Any]:
        self._check_fitted()
        return {
            "target": self.target,
            "units": self.learner_.problem.units,
            "model": self.model_name_,
            "understood": dict(self.pairing_.understood),
            "observations": len(self.pairing_.z),
        }
