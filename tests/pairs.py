"""Two datasets paired, with their bags, as tests look at them."""

from functools import cached_property

from deconditional.fields.pair import pair as of_sides
from deconditional.fields.sides import two_sides


class Paired:
    """A pairing, whose attributes it has, and the fine data it was made of."""

    def __init__(self, pairing, fine):
        self.pairing, self.fine_bags = pairing, fine

    def __getattr__(self, name):
        return getattr(self.pairing, name)

    @cached_property
    def bags(self):
        """All bags, whole."""
        return self.fine_bags.make()

    @property
    def cells(self):
        """The fine cells, where they are in memory."""
        return self.fine_bags.parts.only


def pair(fine, coarse, question):
    """Both datasets read and paired."""
    return Paired(*of_sides(*two_sides(fine, coarse, question)))
