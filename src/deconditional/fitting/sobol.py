"""Scrambled points of Sobol's sequence, which fill a cube more evenly than random ones.

The same seed gives what SciPy gives, whose statistics take as long to import as JAX does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BITS = 30

NUMBERS = """
3:1 7:1,3 11:1,3,1 13:1,1,1 19:1,1,3,3 25:1,3,5,13 37:1,1,5,5,17 41:1,1,5,5,5
47:1,1,7,11,19 55:1,1,5,1,1 59:1,1,1,3,11 61:1,3,5,5,31 67:1,3,3,9,7,49 91:1,1,1,15,21,21
97:1,3,1,13,27,49 103:1,1,1,15,7,5 109:1,3,1,15,13,25 115:1,1,5,5,19,61
131:1,3,7,11,23,15,103 137:1,3,7,13,13,15,69 143:1,1,3,13,7,35,63 145:1,3,5,9,1,25,53
157:1,3,1,13,9,35,107 167:1,3,1,5,27,61,31 171:1,1,5,11,19,41,61 185:1,3,5,3,3,13,69
191:1,1,7,13,1,19,1 193:1,3,7,5,13,19,59 203:1,1,3,9,25,29,41 211:1,3,5,13,23,1,55
213:1,3,7,3,13,59,17 229:1,3,1,3,5,53,69 239:1,1,5,5,23,33,13 241:1,1,7,7,1,61,123
247:1,1,7,9,13,61,49 253:1,3,3,5,3,55,33 285:1,3,1,15,31,13,49,245
299:1,3,5,15,31,59,63,97 301:1,3,1,11,11,11,77,249
"""
"""Of every dimension but the first a primitive polynomial, in bits, and direction numbers to begin
with, by S. Joe and F. Y. Kuo (2008)."""


def sobol(dimensions: int, n: int, seed: int) -> npt.NDArray[np.float64]:
    """The first n points, (n, dimensions); random numbers beyond the dimensions of the table.

    Examples
    --------
    >>> np.histogram(sobol(2, 8, seed=0)[:, 1], 4, (0.0, 1.0))[0]
    array([2, 2, 2, 2])
    """
    (rng,), tables = np.random.default_rng(seed).spawn(1), ["", *NUMBERS.split()][:dimensions]
    shape, powers = (len(tables), BITS), 2 ** np.arange(BITS)
    shift = rng.integers(2, size=shape, dtype=np.uint32) @ powers
    drawn = rng.integers(2, size=(*shape, BITS), dtype=np.uint32)
    mixed = np.tril(drawn, -1).astype(np.int64) + np.eye(BITS, dtype=np.int64)
    number = np.arange(n)
    count = max(n - 1, 1).bit_length()
    gray = (number ^ (number >> 1))[:, None] >> np.arange(count) & 1
    directions = np.array([_directions(table, count) for table in tables])
    digits = directions[:, :, None] >> np.arange(BITS)[::-1] & 1
    scrambled = np.einsum("dpi,dji->djp", mixed, digits) & 1
    found = np.einsum("nj,djp->ndp", gray, scrambled) & 1
    points = ((found @ powers[::-1]) ^ shift) / 2**BITS
    return np.concatenate([points, rng.random((n, dimensions - len(tables)))], axis=1)


def _directions(table: str, count: int) -> list[int]:
    """Direction numbers of a dimension, from its entry in the table."""
    if not table:
        return [1 << (BITS - 1 - j) for j in range(count)]
    polynomial, first = table.split(":")
    bits, found = int(polynomial), [int(number) for number in first.split(",")]
    degree = len(found)
    while len(found) < count:
        new = found[-degree]
        for k in range(1, degree + 1):
            new ^= (bits >> (degree - k) & 1) * (found[-k] << k)
        found.append(new)
    return [number << (BITS - 1 - j) for j, number in enumerate(found[:count])]
