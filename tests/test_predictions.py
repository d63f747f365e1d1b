"""Every model predicts what it did before the house was rebuilt."""

from pathlib import Path

import numpy as np
import pytest

import predictions
from reliability import tries

pytestmark = pytest.mark.reliability

FEW = ("bagg, fine noise", "u-cmp, own bags", "vbagg", "varcmp, linear trend", "pseudo-target")
"""One of each kind in the suite, where dense algebra looks at all of them."""

BEFORE = Path(__file__).parent / "fixtures" / "predictions.npz"


def compare(found, prefix):
    with np.load(BEFORE) as archive:
        before = {name: archive[name] for name in archive.files if name.startswith(prefix)}
    assert set(found) == set(before)
    for name, values in before.items():
        # Joint samples go through the root of a covariance that is singular but for rounding, and
        # the root of a rounding error of 1e-15 is 3e-8.
        slack = 1e-6 if "samples" in name else 1e-10
        # Sums of float32 kernel values hang on tiles, and on how the compiler orders them.
        slack = 1e-5 if "float32" in name else slack
        scale = np.nanmax(np.abs(values))
        np.testing.assert_allclose(found[name], values, slack, slack * scale, err_msg=name)


@pytest.mark.parametrize("name", tries(FEW, tuple(predictions.MODELS)))
def test_a_model_predicts_what_it_did(name):
    compare(predictions.predictions([name]), f"{name}: ")


@pytest.mark.filterwarnings("ignore::deconditional.DeconditionalWarning")
def test_fields_are_what_they_were():
    found = dict(predictions.field_answers())
    compare(found, ("matched fields", "unmatched fields"))
