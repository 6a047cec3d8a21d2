"""Sessions that were ended before their time: their cookies count no more, wherever they are kept."""

import threading

from sqlalchemy import delete, insert, select

from common.counted import counted
from common.errors import Overloaded
from services.registry.store.database import Database
from services.registry.store.tables import ended_sessions

_MOST = 100_000


class EndedSessions:
    """Thread-safe. Read for each page, so the database's rows are kept in memory, too."""

    def __init__(self, database: Database) -> None:
        self._database, self._lock = database, threading.Lock()
        with database.read() as connection:
            rows = connection.execute(select(ended_sessions)).all()
        self._ended: dict[str, float] = {row.digest: row.expires_at for row in rows}

    def __contains__(self, digest: str) -> bool:
        return digest in self._ended

    def end_session(self, digest: str, expires_at: float) -> None:
        """Kept until `expires_at` (epoch seconds), from which on the cookie is refused anyway. Raises Overloaded."""
        with self._lock:
            now = self._database.now
            over = [known for known, until in self._ended.items() if until < now]
            if len(self._ended) - len(over) >= _MOST:
                raise Overloaded(
                    f"{counted(_MOST, 'session')} were ended within their time, the limit; try again later"
                )
            with self._database.write() as transaction:
                transaction.connection.execute(delete(ended_sessions).where(ended_sessions.c.expires_at < now))
                if digest not in self._ended:
                    transaction.connection.execute(insert(ended_sessions).values(digest=digest, expires_at=expires_at))
            for known in over:
                del self._ended[known]
            self._ended[digest] = expires_at
