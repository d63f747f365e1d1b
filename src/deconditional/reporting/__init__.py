"""Parts of the report: grids, marginal distributions, semivariograms, sections and the page."""
