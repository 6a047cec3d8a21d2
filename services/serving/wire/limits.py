"""The limits of a request, counted before memory is taken for it."""

from dataclasses import dataclass

from common.counted import counted
from services.serving.wire.prediction import invalid
from services.serving.wire.tensors import MAX_EXPANDED_BYTES

_OBJECTS_OF_A_ROW = 4
LONG_ROWS = 16_384
"""Of a call of the model, where it may have more than a batch: a few bytes may ask for millions of rows, and a layer of
1,024 units takes 4 KiB of each. A request of more takes several calls, between which a runner answers others."""


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Attributes:
        max_bytes: bytes of the inputs once they are written out.
        max_rows: instances or examples, and rows of inputs where a schema says that they are rows.
        max_lists: lists in a JSON body.
    """

    max_bytes: int = MAX_EXPANDED_BYTES
    max_rows: int = 262_144
    max_lists: int = 8_388_608

    @property
    def max_objects(self) -> int:
        """In a JSON body: a row, and some values in it that are base64."""
        return _OBJECTS_OF_A_ROW * self.max_rows

    def check_rows(self, count: int) -> None:
        """Raises RequestFailed for too many."""
        if count > self.max_rows:
            raise invalid(
                f"the request has {counted(count, 'row')}, expected at most {self.max_rows:,}; send fewer at once"
            )


DEFAULT_LIMITS = Limits()
