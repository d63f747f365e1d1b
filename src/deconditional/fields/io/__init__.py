"""Files: the fence between data that anybody may have written and the rest of the package.

Whatever a file claims of itself is looked at here before any of it is believed, and what is written
is there whole or not at all.
"""

from deconditional.fields.io.attributes import understandable
from deconditional.fields.io.checks import check_room
from deconditional.fields.io.geo import is_raster, is_table_file, open_table
from deconditional.fields.io.reading import open_fields, open_fine
from deconditional.fields.io.writing import (
    check_output,
    check_writable,
    protect_inputs,
    remove,
    write_fields,
)

__all__ = [
    "check_output",
    "check_room",
    "check_writable",
    "is_raster",
    "is_table_file",
    "open_fields",
    "open_fine",
    "open_table",
    "protect_inputs",
    "remove",
    "understandable",
    "write_fields",
]
