"""What the benchmarks measure: fixed made-up data, and one evaluation of what a fit maximises."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from deconditional import CMP, Bags
from deconditional.fitting.evaluation import loss_and_gradient
from deconditional.models.data import Data
from deconditional.models.problems import mediated, problem_parts
from deconditional.models.solvers import Posed, pose
from deconditional.observations.kinds import Matched, Observation

__all__ = ["Start", "Strips", "posed", "problem_of", "start", "strips"]


def posed(
    model: Any,
    bags: Bags,
    z: npt.ArrayLike,
    mediator: npt.ArrayLike | None = None,
    *,
    noise_std: npt.ArrayLike | None = None,
    noise_cov: npt.ArrayLike | None = None,
    own_bag: npt.ArrayLike | None = None,
) -> Posed:
    """The problem that a fit of the model would solve, and how it was posed."""
    data = Data.of(bags, z, noise_std, noise_cov, model)
    mediation: Observation = Matched()
    if isinstance(model, CMP):
        data = data.linked(mediator, own_bag)
        mediation = mediated(data, model)
    return pose(model, problem_parts(data, mediation, model), data.bags, model.seed)


def problem_of(model: Any, *data: Any, **more: Any) -> Any:
    """The problem alone; see :func:`posed`."""
    return posed(model, *data, **more).problem


class Start(NamedTuple):
    """The log posterior that a fit maximises, and where it starts."""

    problem: Any
    vector: Any

    def evaluate(self) -> tuple[Any, Any]:
        """The negative log posterior at the start, and its gradient."""
        return loss_and_gradient(self.problem, self.vector)

    def field(self) -> Any:
        """The posterior field there."""
        return self.problem.solve(self.vector)[1]


def start(model: Any, bags: Bags, z: np.ndarray, mediator: np.ndarray | None = None) -> Start:
    """Where the fit of a model to some data starts."""
    problem = problem_of(model, bags, z, mediator)
    return Start(problem, jnp.asarray(problem.parameters.start()))


class Strips(NamedTuple):
    """Bags along the first covariate, which is also the mediator, and coarse observations."""

    bags: Bags
    z: np.ndarray
    mediator: np.ndarray


def strips(points: int, n_bags: int, observations: int | None = None, dims: int = 3) -> Strips:
    """Uniform points cut into bags along their first covariate.

    The field is a wave along that covariate and a parabola of the second, if there is one. With
    `observations` None, every bag has one; otherwise they lie at other mediators.

    Examples
    --------
    >>> problem = strips(200, 10, observations=7)
    >>> problem.bags.n_bags, problem.bags.n_points, problem.z.shape, problem.mediator.shape
    (10, 200, (7,), (7, 1))
    """
    rng = np.random.default_rng(0)
    x: Any = rng.uniform(size=(points, dims))
    # Every bag has a point, however many bags there are.
    x[:, 0] = (np.arange(points) + x[:, 0]) / points
    bag_of = np.minimum((x[:, 0] * n_bags).astype(int), n_bags - 1)
    y = (np.arange(n_bags) + 0.5) / n_bags
    bags = Bags.from_points(x, bag_of, mediator=y)
    second = x[:, 1] ** 2 if dims > 1 else 0.0
    means = bags.means(np.sin(6 * x[:, 0]) + second)
    at = y if observations is None else (np.arange(observations) + 0.5) / observations
    z = np.interp(at, y, means) + 0.05 * rng.standard_normal(len(at))
    return Strips(bags, z, at[:, None])
