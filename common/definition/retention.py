"""Which versions of a model keep their files; of others the record stays (services/registry/versions/retention.py)."""

import math
from dataclasses import dataclass
from typing import Annotated

from common.definition.fields import Allowed, Fields
from common.errors import InvalidInput

HOUR_SECONDS, DAY_SECONDS = 3600, 86_400


@dataclass(frozen=True)
class Retention:
    """Hours and days are of UTC; each is thinned to one version when all of it has passed out of its time.

    Attributes:
        keep_all_hours: younger versions all stay; None: every version stays.
        keep_hourly_days: of younger versions one an hour stays.
        keep_daily_days: of younger versions one a day stays, older versions go; None: one a day stays for ever.
        keep_newest: how many of the newest versions stay at any age.
    """

    keep_all_hours: Annotated[float | None, Allowed(minimum=0.0)] = 1.0
    keep_hourly_days: Annotated[float, Allowed(minimum=0.0)] = 7.0
    keep_daily_days: Annotated[float | None, Allowed(minimum=0.0)] = None
    keep_newest: int = 1

    @property
    def all_seconds(self) -> float:
        return math.inf if self.keep_all_hours is None else self.keep_all_hours * HOUR_SECONDS

    @property
    def hourly_seconds(self) -> float:
        return self.keep_hourly_days * DAY_SECONDS

    @property
    def daily_seconds(self) -> float:
        return math.inf if self.keep_daily_days is None else self.keep_daily_days * DAY_SECONDS


def parse_retention(section: object) -> Retention:
    """Raises InvalidInput."""
    fields = Fields("retention", section)
    retention = fields.made(Retention)
    fields.finish()
    if retention.keep_all_hours is not None and retention.daily_seconds < max(
        retention.hourly_seconds, retention.all_seconds
    ):
        raise InvalidInput(
            f"retention: keep_daily_days {retention.keep_daily_days:g} ends before keep_all_hours "
            f"{retention.keep_all_hours:g} or keep_hourly_days {retention.keep_hourly_days:g}"
        )
    return retention
