"""The HTML report of a result, and figures."""

from deconditional.report.write import write_report

__all__ = ["write_report"]
