"""Ragged bags of fine points: weights, mediators, and the few points that may stand for many."""

from deconditional.bags.bags import Bags

__all__ = ["Bags"]
