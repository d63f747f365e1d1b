"""Every model predicts what it did before the house was rebuilt."""

from pathlib import Path

import numpy as np
import pytest

import predictions

BEFORE = Path(__file__).parent / "fixtures" / "predictions.npz"


def compare(found, prefix):
    with np.load(BEFORE) as archive:
        before = {name: archive[name] for name in archive.files if name.startswith(prefix)}
    assert set(found) == set(before)
    for name, values in before.items():
        scale = np.nanmax(np.abs(values))
        np.testing.assert_allclose(
            found[name], values, rtol=1e-10, atol=1e-10 * scale, err_msg=name
        )


@pytest.mark.parametrize("name", predictions.MODELS)
def test_a_model_predicts_what_it_did(name):
    compare(predictions.predictions([name]), f"{name}: ")


@pytest.mark.filterwarnings("ignore::deconditional.DeconditionalWarning")
def test_fields_are_what_they_were():
    found = dict(predictions.field_answers())
    compare(found, ("matched fields", "unmatched fields"))
