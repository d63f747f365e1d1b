"""Clusters and points far apart, against scikit-learn's, on points in no order and on grids."""

import numpy as np
import pytest
from sklearn.cluster import KMeans, kmeans_plusplus

from deconditional.bags.clusters import clusters, far_apart

RNG = np.random.default_rng(0)
GRID = np.stack(np.meshgrid(np.linspace(40, 46, 7), np.linspace(5, 13, 9)), -1).reshape(-1, 2)
POINTS = {"scattered": RNG.normal(size=(150, 3)), "grid, with ties": GRID}


@pytest.mark.parametrize("number", [2, 5, 17])
@pytest.mark.parametrize("points", POINTS.values(), ids=POINTS)
def test_clusters_are_those_of_scikit_learn(points, number):
    expected = KMeans(number, n_init=1, random_state=3).fit_predict(points)
    np.testing.assert_array_equal(clusters(points, number, 3), expected)
    _, rows = kmeans_plusplus(points, number, random_state=3)
    np.testing.assert_array_equal(far_apart(points, number, 3), rows)


def test_points_that_are_all_the_same_are_one_cluster():
    assert set(clusters(np.zeros((5, 2)), 2, 0)) == {0}
