r"""Several models that answer together, each with the weight that held-out observations give it.

Choosing one of several models throws away what the others know, and where scores hardly tell them
apart the choice is a matter of luck. Stacking predicts by a mixture instead. Of weights w on the
simplex, held-out observations have the likelihood

.. math:: L(w) = \prod_m \sum_k w_k \, p_k(z_m \mid z_{-m}),

and the weights are their posterior mean under a uniform prior (Yao, Pirš, Vehtari & Gelman 2022,
"Bayesian hierarchical stacking"). Many observations that agree leave the best mixture; a dozen
leave weights near their prior, and intervals that contain what the models disagree about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deconditional.bags import Bags
from deconditional.fields.validation import MIXTURE, Predicted, Tried
from deconditional.inference.field import Field
from deconditional.inference.posterior import CoarsePosterior, Gaussians, Posterior
from deconditional.scores.distributions import log_densities

Floats = npt.NDArray[np.float64]

DRAWS = 16
"""Components of a mixture: twice the draws of hyper-parameters that a single model has."""

POINTS = 4096
"""Points of the simplex over which weights are averaged."""


def stacked_weights(densities: Floats) -> Floats:
    """Weights of models from the log densities (K, M) they gave to held-out observations.

    Examples
    --------
    >>> never, equal = np.log([[0.4] * 50, [1e-9] * 50]), np.zeros((2, 50))
    >>> stacked_weights(never).round(2).tolist(), stacked_weights(equal).round(2).tolist()
    ([0.98, 0.02], [0.5, 0.5])
    """
    simplex = np.random.default_rng(0).dirichlet(np.ones(len(densities)), POINTS)
    relative = np.exp(densities - densities.max(0))
    likelihood = np.log(simplex @ relative).sum(1)
    posterior = np.exp(likelihood - likelihood.max())
    return np.asarray(posterior @ simplex / posterior.sum())


def mixed(tried: Sequence[Tried]) -> list[Tried]:
    """Their mixture before some models, and the number of its draws that each of them gives."""
    weights = stacked_weights(np.stack([log_densities(*m.held_out) for m in tried]))
    shares = _rounded(weights)
    seen = [m.detail for m in tried if m.detail is not None]
    both = Tried(
        MIXTURE,
        _together([m.held_out for m in tried], shares),
        sum(m.seconds for m in tried),
        _together(seen, shares) if seen else None,
    )
    return [both, *(replace(m, share=n) for m, n in zip(tried, shares, strict=True))]


@dataclass(frozen=True)
class Mixture:
    """Fitted models, and how many draws of the mixture each of them gives.

    Examples
    --------
    >>> from deconditional import BaggGP, Bags
    >>> x = np.linspace(0, 3, 300)
    >>> bags = Bags.from_points(x, np.arange(300) // 10)
    >>> fit = lambda z: BaggGP(n_restarts=1).fit(bags, z, noise_std=0.01)
    >>> models = {n: fit(bags.means(np.sin(n * x))) for n in (1, 2)}
    >>> post = Mixture(models, {1: 12, 2: 4}).predict([1.5])
    >>> float(post.mean[0].round(2)), post.component_means.shape
    (0.78, (16, 1))
    """

    models: Mapping[Any, Any]
    shares: Mapping[Any, int]

    @property
    def heaviest(self) -> Any:
        """The model that gives the most draws."""
        return self.models[max(self.models, key=self.shares.__getitem__)]

    def predict(
        self, x: npt.ArrayLike, fine_noise: bool = False, features: int | None = None
    ) -> Posterior:
        """Posterior of the fine field; see :meth:`deconditional.BaggGP.predict`."""
        fields: list[Field] = []
        for name, model in self.models.items():
            post = model.predict(x, fine_noise=fine_noise, features=features)
            fields += [post.fields[k] for k in _places(len(post.fields), self.shares[name])]
        return Posterior(fields, post.x, fine_noise, post.support, post.may_round)

    def predict_bags(self, bags: Bags) -> CoarsePosterior:
        """Joint posterior of the means of f over new bags."""
        means, covariances = [], []
        for name, model in self.models.items():
            post = model.predict_bags(bags)
            kept = _places(len(post.component_means), self.shares[name])
            means.append(post.component_means[kept])
            covariances.append(post.component_covariances[kept])
        return CoarsePosterior(np.concatenate(means), np.concatenate(covariances))


def drawn(name: str, model: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Name and hyper-parameters of every draw of a fitted model, or of a mixture of several."""
    if not isinstance(model, Mixture):
        return [(name, values) for values in model.fitted_.values()]
    found: list[tuple[str, Mapping[str, Any]]] = []
    for own, each in model.models.items():
        values = each.fitted_.values()
        found += [(own, values[k]) for k in _places(len(values), model.shares[own])]
    return found


def _rounded(weights: Floats) -> list[int]:
    """Weights as numbers of draws, by largest remainders."""
    draws = np.floor(DRAWS * weights).astype(int)
    draws[np.argsort(draws - DRAWS * weights)[: DRAWS - draws.sum()]] += 1
    return [int(n) for n in draws]


def _places(n: int, share: int) -> list[int]:
    """So many of n draws, evenly spread over them."""
    return [int((k + 0.5) * n / share) for k in range(share)]


def _together(parts: Sequence[Predicted], shares: Sequence[int]) -> Predicted:
    """The mixture of predictions of the same observations."""
    means, variances = [], []
    for (post, _), share in zip(parts, shares, strict=True):
        kept = _places(len(post.component_means), share)
        means.append(post.component_means[kept])
        variances.append(post.component_variances[kept])
    return Predicted(Gaussians(np.concatenate(means), np.concatenate(variances)), parts[0].z)
