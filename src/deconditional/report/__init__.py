"""The HTML report of a result, and figures."""

try:
    import cf_xarray  # noqa: F401
    import xarray  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError(f"reports need {error.name}: pip install 'deconditional[report]'.") from None

from deconditional.report.write import write_report

__all__ = ["write_report"]
