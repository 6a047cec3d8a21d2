"""Principals: a name for the history, and roles.

    ingest:<stream>   sends events to the stream, reads its state and its dead letters
    predict:<model>   asks the model for predictions, reads its signatures
    author:<model>    registers definitions of the model, trains it, pushes versions, reads it
    operator          all of these, and promotes, rolls back, pins, archives, deletes
    viewer            reads everything
    service:<kind>    what a service of that kind asks of the others (registry, ingest, trainer, serving)

`<stream>`, `<model>` and `<kind>` may be patterns (fnmatch): `predict:flights-*`. `operator` does not stand for
`service:*`: a person cannot register a version in a trainer's name.
"""

import math
import re
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from common.errors import InvalidInput

INGEST, PREDICT, AUTHOR, OPERATOR, VIEWER, SERVICE = "ingest", "predict", "author", "operator", "viewer", "service"
_WITH_NAME = (INGEST, PREDICT, AUTHOR, SERVICE)
_ROLE = re.compile(rf"({'|'.join(_WITH_NAME)}):[A-Za-z0-9_.*?\[\]!-]{{1,128}}|{OPERATOR}|{VIEWER}")
_NAME = re.compile(r"[A-Za-z0-9_.@:+|-]{1,128}")
_OF_OPERATORS = (INGEST, PREDICT, AUTHOR, VIEWER)
_MOST_ANSWERS = 4096


@dataclass(frozen=True)
class Principal:
    """Attributes:
    roles: as check_roles takes them.
    is_identified: False where requests need no credentials.
    expires_at: epoch seconds after which its credentials count no more.
    """

    name: str
    roles: frozenset[str]
    is_identified: bool = True
    expires_at: float = math.inf
    _answers: dict[tuple[str, str | None], bool] = field(default_factory=dict, compare=False, repr=False)

    def may(self, kind: str, name: str | None = None) -> bool:
        """Whether a role of the kind is among its roles: for the name, or, where that is None, for any."""
        found = self._answers.get((kind, name))
        if found is None:
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            found = self._answers[kind, name] = self._looked_up(kind, name)
        return found

    def _looked_up(self, kind: str, name: str | None) -> bool:
        if OPERATOR in self.roles and kind in _OF_OPERATORS:
            return True
        if kind in (OPERATOR, VIEWER):
            return kind in self.roles
        patterns = [role.partition(":")[2] for role in self.roles if role.startswith(f"{kind}:")]
        return any(name is None or pattern == "*" or _matches(name, pattern) for pattern in patterns)


def _matches(name: str, pattern: str) -> bool:
    """By code points, case included. A name with a slash matches no pattern: a path must not pass for its beginning."""
    return "/" not in name and fnmatchcase(name, pattern)


ANONYMOUS = Principal("anonymous", frozenset({OPERATOR, *(f"{kind}:*" for kind in _WITH_NAME)}), is_identified=False)
"""Of every request where requests need no credentials."""
_current: ContextVar[Principal] = ContextVar("principal", default=ANONYMOUS)


def check_name(name: str) -> str:
    """The name itself. Raises InvalidInput: it is none."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{name[:100]!r} is no name of a principal; expected {_NAME.pattern}")
    return name


def check_roles(roles: Iterable[str]) -> frozenset[str]:
    """The roles as a set. Raises InvalidInput: one is no role."""
    found = frozenset(roles)
    wrong = sorted(role for role in found if not _ROLE.fullmatch(role))
    if wrong:
        named = ", ".join(repr(role[:100]) for role in wrong)
        with_name = ", ".join(f"{kind}:<name>" for kind in _WITH_NAME)
        raise InvalidInput(f"{named} is no role; roles are {with_name}, {OPERATOR} and {VIEWER}")
    return found


def current() -> Principal:
    """Of the request that is being answered."""
    return _current.get()


def may_know(kind: str) -> Callable[[str], bool]:
    """Whether the current principal may know that there is a resource of this name: by a role of the kind for it, or by
    the role to read everything."""
    principal = _current.get()
    return lambda name: principal.may(VIEWER) or principal.may(kind, name)


def act_as(principal: Principal) -> None:
    """Has the rest of this request's task or thread answer the principal."""
    if _current.get() is not principal:  # A connection's requests mostly are one principal's; to set it takes longer.
        _current.set(principal)


def author_of(by: str) -> str:
    """The name for the history: the principal's; for a service, which acts for others, the name in the request."""
    principal = _current.get()
    is_person = principal.is_identified and not principal.may(SERVICE)
    return principal.name if is_person else by or (principal.name if principal.is_identified else "")
