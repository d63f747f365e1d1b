"""Bags of fine points: which points a coarse value averages over, and with what weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array

from deconditional.bags.condense import drawn, representatives
from deconditional.bags.inputs import (
    Floats,
    amounts_within,
    bags_of_labels,
    check_possible,
    columns_of,
    constant_within,
    mediator_array,
    names_of,
    points_array,
    points_of_list,
    unique_names,
    weights_within,
)
from deconditional.kernels.devices import spread
from deconditional.kernels.layout import Layout, layout_bags

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Bags:
    r"""Ragged bags of fine points with within-bag weights and, optionally, mediators.

    Use the constructors :meth:`from_points`, :meth:`from_list`, :meth:`from_frame` and
    :meth:`from_membership`; they check their input and name the bag that is wrong.

    Attributes
    ----------
    points : (n, d) array
        One row per membership. A point that belongs to two bags has two rows.
    bag : (n,) int array
        The bag of every row, an index into `ids`.
    weights : (n,) array
        Non-negative, sum to one within each bag.
    ids : tuple
        The bags' names, in order.
    mediator : (N, p) array or None
        The value of the mediating variable of every bag.
    point : (n,) int array
        Identity of the fine point behind each row: equal numbers are one point.
    exposure : (N,) array or None
        The amount of every bag in all, such as its population, where points have amounts.

    Examples
    --------
    Three points in two bags, the mediator known for each bag:

    >>> import numpy as np
    >>> from deconditional import Bags
    >>> x = np.array([[0.0], [1.0], [5.0]])
    >>> bags = Bags.from_points(x, [0, 0, 1], mediator=[[10.0], [20.0]])
    >>> bags
    Bags(2 bags, 3 points, 1 covariate, 1-2 points per bag, mediator of 1 variable)
    >>> bags.means().tolist()
    [[0.5], [5.0]]
    """

    points: Floats
    bag: Ints
    weights: Floats
    ids: tuple[Hashable, ...]
    mediator: Floats | None
    point: Ints
    exposure: Floats | None = None

    def __loaded__(self) -> Bags:
        """The bags themselves, once what a file says of them is known to be possible."""
        own = self.points, self.bag, self.weights, self.ids, self.mediator, self.point
        check_possible(*own, self.exposure)
        return self

    # ------------------------------------------------------------------ constructors

    @classmethod
    def from_points(
        cls,
        x: npt.ArrayLike,
        bag_of: npt.ArrayLike,
        mediator: npt.ArrayLike | Mapping[Any, Any] | None = None,
        weights: npt.ArrayLike | None = None,
        ids: Sequence[Hashable] | None = None,
        exposure: npt.ArrayLike | None = None,
    ) -> Bags:
        """Bags from an array of points and the bag of each.

        Parameters
        ----------
        x : (n, d) or (n,)
            Fine covariates. To put a point into two bags, give its row twice, or use
            :meth:`from_membership` which also knows that it is the same point.
        bag_of : (n,)
            The bag of every point: whole numbers from 0, or any labels.
        mediator : (N, p) or (N,) or mapping from label to value, optional
            The mediator of every bag, in the order of `ids`.
        weights : (n,), optional
            Cell areas, populations or overlap fractions; scaled to sum to one within each bag.
            Equal by default.
        ids : sequence, optional
            The labels in the order in which `mediator` is given. Without it, whole-number labels
            are 0 to N-1 and other labels are sorted.
        exposure : (n,), optional
            The amount of every point, such as its population: a count over the bag is the sum of
            rates times amounts. Points weigh within their bag what they have, times `weights`
            where these are given too, and ``bags.exposure`` is the amount of every bag in all.

        Examples
        --------
        >>> towns = Bags.from_points([[0.0], [1.0], [5.0]], ["a", "a", "b"], exposure=[10, 30, 5])
        >>> towns.weights.tolist(), towns.exposure.tolist()
        ([0.25, 0.75, 1.0], [40.0, 5.0])
        """
        x = points_array(x)
        names, bag = bags_of_labels(np.asarray(bag_of), len(x), ids, mediator)
        amounts = None
        if exposure is not None:
            weights, amounts = amounts_within(bag, weights, exposure, names)
        made = cls._checked(x, bag, weights, names, mediator, np.arange(len(x)))
        return replace(made, exposure=amounts)

    @classmethod
    def from_list(
        cls,
        bags: Sequence[npt.ArrayLike],
        mediator: npt.ArrayLike | Mapping[Any, Any] | None = None,
        weights: Sequence[npt.ArrayLike] | None = None,
        ids: Sequence[Hashable] | None = None,
    ) -> Bags:
        """Bags from a list of (n_j, d) arrays, one per bag; `weights` likewise a list of arrays."""
        names = names_of(ids, len(bags))
        x, sizes, flat_weights = points_of_list(bags, weights, names)
        bag = np.repeat(np.arange(len(bags)), sizes)
        return cls._checked(x, bag, flat_weights, names, mediator, np.arange(len(x)))

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        bag: str,
        covariates: Sequence[str],
        mediators: Sequence[str] | None = None,
        weight: str | None = None,
    ) -> Bags:
        """Bags from a long-form DataFrame: one row per point, columns named by the caller.

        Mediator columns repeat the bag's value on each of its rows. Bags are ordered as they
        first appear.

        Examples
        --------
        >>> import pandas as pd
        >>> frame = pd.DataFrame(
        ...     {"county": ["a", "a", "b"], "altitude": [1.0, 3.0, 7.0], "rain": [0.2, 0.2, 0.9]}
        ... )
        >>> Bags.from_frame(frame, bag="county", covariates=["altitude"], mediators=["rain"]).ids
        ('a', 'b')
        """
        if not hasattr(frame, "columns"):
            raise TypeError(f"frame must be a DataFrame, not {type(frame).__name__}.")
        covariates = [covariates] if isinstance(covariates, str) else list(covariates)
        mediators = [mediators] if isinstance(mediators, str) else list(mediators or [])
        weight_column = [weight] if weight else []
        numbers = columns_of(frame, bag, [*covariates, *mediators, *weight_column])
        codes, uniques = frame[bag].factorize()
        names = unique_names(uniques.tolist())
        x = points_array(numbers[:, : len(covariates)])
        mediator = None
        if mediators:
            values = numbers[:, len(covariates) : len(covariates) + len(mediators)]
            mediator = constant_within(values, codes, names, mediators)
        weights = numbers[:, -1] if weight else None
        return cls._checked(x, codes.astype(np.int64), weights, names, mediator, np.arange(len(x)))

    @classmethod
    def from_membership(
        cls,
        x: npt.ArrayLike,
        membership: Any,
        mediator: npt.ArrayLike | Mapping[Any, Any] | None = None,
        ids: Sequence[Hashable] | None = None,
    ) -> Bags:
        """Bags from points and a matrix of weights, dense or SciPy sparse, one column per bag.

        A point with weight in several columns is shared by those bags.

        Examples
        --------
        >>> x = np.array([[0.0], [1.0], [2.0]])
        >>> shared = Bags.from_membership(x, [[1, 0], [1, 1], [0, 1]])
        >>> shared.overlap().tolist()
        [[0.5, 0.25], [0.25, 0.5]]
        """
        x = points_array(x)
        matrix = coo_array(membership)
        if matrix.shape[0] != len(x):
            raise ValueError(
                f"the membership matrix has {matrix.shape[0]} rows for {len(x)} points."
            )
        names = names_of(ids, matrix.shape[1])
        used = matrix.data != 0
        point, bag = matrix.row[used].astype(np.int64), matrix.col[used].astype(np.int64)
        return cls._checked(x[point], bag, matrix.data[used], names, mediator, point)

    @classmethod
    def _checked(
        cls, x: Floats, bag: Ints, weights: Any, names: Any, mediator: Any, point: Ints
    ) -> Bags:
        within = weights_within(x, bag, weights, names)
        return cls(x, bag, within, names, mediator_array(mediator, names), point)

    # ------------------------------------------------------------------ views

    def __repr__(self) -> str:
        sizes = self.sizes
        d, p = self.points.shape[1], 0 if self.mediator is None else self.mediator.shape[1]
        mediated = f", mediator of {p} variable{'s' * (p > 1)}" if p else ""
        return (
            f"Bags({self.n_bags} bag{'s' * (self.n_bags > 1)}, {len(self.points)} points, "
            f"{d} covariate{'s' * (d > 1)}, {sizes.min()}-{sizes.max()} points per bag{mediated})"
        )

    def __len__(self) -> int:
        return self.n_bags

    def __iter__(self) -> Iterator[Floats]:
        """The points of each bag in turn."""
        order = np.argsort(self.bag, kind="stable")
        return iter(np.split(self.points[order], np.cumsum(self.sizes)[:-1]))

    @property
    def n_bags(self) -> int:
        """N, the number of bags."""
        return len(self.ids)

    @property
    def n_points(self) -> int:
        """n, the number of memberships."""
        return len(self.points)

    @cached_property
    def sizes(self) -> Ints:
        """n_j, the number of points of every bag."""
        return np.bincount(self.bag, minlength=self.n_bags).astype(np.int64)

    @cached_property
    def effective_sizes(self) -> Floats:
        r"""Kish's :math:`1/\sum_i (w_j^{(i)})^2`: n_j for equal weights."""
        return 1.0 / np.bincount(self.bag, weights=self.weights**2, minlength=self.n_bags)

    @cached_property
    def share_points(self) -> bool:
        """Whether a point belongs to several bags, or to one bag more than once."""
        return len(np.unique(self.point)) < len(self.point)

    def overlap(self) -> Floats:
        r""":math:`P^\top P`, the covariance that unit high-resolution noise gives to bag means.

        Diagonal unless bags share points.
        """
        shape = (int(self.point.max()) + 1, self.n_bags)
        p = coo_array((self.weights, (self.point, self.bag)), shape=shape).tocsr()
        return np.asarray((p.T @ p).todense(), dtype=float)

    def means(self, values: npt.ArrayLike | None = None) -> Floats:
        r""":math:`P^\top v`: weighted means over each bag, of the points by default."""
        v = self.points if values is None else np.asarray(values, dtype=float)
        if len(v) != self.n_points:
            raise ValueError(f"{self.n_points} points came with {len(v)} values.")
        means = np.empty((self.n_bags, *v.shape[1:]))
        for column in np.ndindex(*v.shape[1:]):
            weighted = self.weights * v[:, *column]
            means[:, *column] = np.bincount(self.bag, weights=weighted, minlength=self.n_bags)
        return means

    # ------------------------------------------------------------------ derived bags

    def centroids(self) -> Bags:
        """Every bag collapsed to the weighted mean of its points."""
        own = np.arange(self.n_bags)
        ones = np.ones(self.n_bags)
        return replace(self, points=self.means(), bag=own, weights=ones, point=own)

    def select(self, which: npt.ArrayLike) -> Bags:
        """Some of the bags, by index or mask, in the order given."""
        if np.size(which) == 0 or not (chosen := np.arange(self.n_bags)[np.asarray(which)]).size:
            raise ValueError("no bag was selected.")
        counts = np.bincount(chosen, minlength=self.n_bags)
        if counts.max() > 1:
            raise ValueError(f"bag {self.ids[int(np.argmax(counts))]!r} is selected twice.")
        new_index = np.full(self.n_bags, -1)
        new_index[chosen] = np.arange(len(chosen))
        kept = new_index[self.bag] >= 0
        return Bags(
            *(self.points[kept], new_index[self.bag[kept]], self.weights[kept]),
            tuple(self.ids[j] for j in chosen),
            mediator=None if self.mediator is None else self.mediator[chosen],
            point=self.point[kept],
            exposure=None if self.exposure is None else self.exposure[chosen],
        )

    def subsample(self, points_per_bag: int, seed: int = 0) -> Bags:
        """At most `points_per_bag` points of every bag, drawn without replacement.

        Points are drawn with probability proportional to their weight and then count equally, so
        weighted bags keep their mean in expectation up to the finite-population correction; where
        weights are equal the draw is uniform. Bags that are small enough stay whole.

        Examples
        --------
        >>> bags = Bags.from_list([np.arange(10.0), np.arange(3.0)])
        >>> bags.subsample(4, seed=1).sizes.tolist()
        [4, 3]
        """
        return self._reduced(points_per_bag, seed, drawn)

    def condense(self, points_per_bag: int, seed: int = 0) -> Bags:
        """At most `points_per_bag` points of every bag, chosen and weighted to stand for all of it.

        Means of smooth functions over a bag change less than by :meth:`subsample`, far less in few
        covariates; see :mod:`deconditional.bags.condense`. Bags that are small enough stay whole.

        Parameters
        ----------
        points_per_bag
            How many points to keep.
        seed
            Bags of more than 1500 points are sampled first, with this seed.

        Examples
        --------
        >>> bags = Bags.from_list([np.linspace(0, 1, 200), np.arange(3.0)])
        >>> few = bags.condense(8)
        >>> few.sizes.tolist(), bool(np.abs(few.means() - bags.means()).max() < 1e-3)
        ([8, 3], True)
        """
        return self._reduced(points_per_bag, seed, representatives)

    def joined(self, *others: Bags) -> Bags:
        """These bags and others, without their mediators; a bag's name is a pair with its place."""
        every = (self, *others)
        firsts = np.cumsum([0, *(bags.n_bags for bags in every)])
        points = np.cumsum([0, *(int(bags.point.max()) + 1 for bags in every)])
        return Bags(
            np.concatenate([bags.points for bags in every]),
            np.concatenate([bags.bag + k for bags, k in zip(every, firsts, strict=False)]),
            np.concatenate([bags.weights for bags in every]),
            tuple((k, name) for k, bags in enumerate(every) for name in bags.ids),
            None,
            np.concatenate([bags.point + k for bags, k in zip(every, points, strict=False)]),
        )

    def _reduced(self, points_per_bag: int, seed: int, choose: Callable[..., Any]) -> Bags:
        """These bags with fewer points in those that have more than `points_per_bag`."""
        if points_per_bag < 1:
            raise ValueError(f"points_per_bag must be at least 1, not {points_per_bag}.")
        rng = np.random.default_rng(seed)
        rows, weights = [], []
        ends = np.cumsum(self.sizes)[:-1]
        for members in np.split(np.argsort(self.bag, kind="stable"), ends):
            x, w = self.points[members], self.weights[members]
            if len(members) > points_per_bag:
                chosen, w = choose(x, w, points_per_bag, rng)
                members = members[chosen]
            rows.append(members)
            weights.append(w)
        which = np.concatenate(rows)
        kept = {name: getattr(self, name)[which] for name in ("points", "bag", "point")}
        return replace(self, weights=np.concatenate(weights), **kept)

    # ------------------------------------------------------------------ for the kernels

    @cached_property
    def _layout_and_source(self) -> tuple[Layout, Ints]:
        return layout_bags(self.points, self.bag, self.weights, self.n_bags)

    @property
    def layout(self) -> Layout:
        """These bags in arrays of fixed shape, on the devices in use; made once."""
        return spread(self._layout_and_source[0])

    @property
    def slot_points(self) -> Ints:
        """The row of `points` behind every slot of the layout."""
        return self._layout_and_source[1]
