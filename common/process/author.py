"""`by` of a request: with identity the principal's name (common/access/principal.py), else the request's text."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from common.access.principal import author_of, current


def _named(by: object) -> object:
    if current().is_identified:
        return author_of(by if isinstance(by, str) else "")
    if by is None:
        raise PydanticCustomError("missing", "Field required")
    return by


By = Annotated[str, Field(max_length=2_000), BeforeValidator(_named)]
LEFT_OUT: Any = Field(None, validate_default=True)
"""The default of a field that may be left out where identity is on, and only there."""
