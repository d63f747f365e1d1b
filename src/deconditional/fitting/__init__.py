"""Learning parameters of any problem with a log posterior: priors, L-BFGS, NUTS, draws."""
