"""A service's table of rules, held against every request: what has no rule is refused."""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from common.access.access import Access
from common.access.principal import ANONYMOUS, Principal, act_as, current
from common.errors import PermissionDenied, Unauthenticated

_HEADER = "authorization"
Named = Callable[[str], Iterable[str | None]]
"""The values of a parameter of the path, or of a field of the message; None stands for any."""


@dataclass(frozen=True)
class Rule:
    """Who may pass: principals with one of the roles.

    Attributes:
        roles: (kind, field that has the name); without a field, a role of the kind for any name. None at all: every
            principal may.
        is_open: the request needs no credentials.
        is_checked_by_door: the door reads the request to learn the name, then calls `require`; until then a role for
            any name suffices.
    """

    roles: tuple[tuple[str, str], ...] = ()
    is_open: bool = False
    is_checked_by_door: bool = False

    def admits(self, principal: Principal, named: Named) -> bool:
        for kind, field in self.roles:  # A generator for any() or all() takes as long as what it would go through.
            if self._has(principal, kind, field, named):
                return True
        return not self.roles

    @staticmethod
    def _has(principal: Principal, kind: str, field: str, named: Named) -> bool:
        if not field:
            return principal.may(kind)
        for name in named(field):  # noqa: SIM110 - as above
            if not principal.may(kind, name):
                return False
        return True


OPEN = Rule(is_open=True)
ANYBODY = Rule()
"""With credentials."""


def rule(*roles: str, by_door: bool = False) -> Rule:
    """`rule("viewer", "predict:{model}")`; `predict` alone is the role for any model, `service:trainer` that kind."""
    return Rule(tuple(_parsed(role) for role in roles), is_checked_by_door=by_door)


def _parsed(role: str) -> tuple[str, str]:
    kind, _, name = role.partition(":")
    return kind, name.strip("{}") if name.startswith("{") else f"={name}" if name else ""


class Guard:
    """One service's. `rules`: {"METHOD /path/{template}" or "package.Service/Method": Rule}."""

    def __init__(self, access: Access, rules: Mapping[str, Rule]) -> None:
        self.access, self.rules = access, rules

    @property
    def is_on(self) -> bool:
        return self.access.is_on

    def let_in(self, action: str, identify: Callable[[], Principal]) -> Principal:
        """The principal of the request, from now on the current principal; `check` decides whether it may pass. Raises
        Unauthenticated; PermissionDenied: the action has no rule."""
        found = self.rules.get(action)
        if found is not None and found.is_open:
            return ANONYMOUS
        principal = identify()
        if found is None:
            raise PermissionDenied(f"{action} has no rule, so every call of it is refused")
        act_as(principal)
        return principal

    def check(self, action: str, principal: Principal, named: Named) -> None:
        """Raises PermissionDenied unless the principal may take the action on the resource that the request names; the
        answer is the same where there is no such resource."""
        found = self.rules[action]
        named = _any_name if found.is_checked_by_door else named
        if not (found.is_open or found.admits(principal, named)):
            raise PermissionDenied(f"{principal.name} may not call {action} for what the request names")


def require(needed: Rule, named: Named) -> None:
    """For a door that has read the request itself. Raises PermissionDenied unless the current principal may."""
    principal = current()
    if not needed.admits(principal, named):
        kinds = " or ".join(kind for kind, _ in needed.roles)
        raise PermissionDenied(f"{principal.name} has no role of {kinds} for what the request names")


def called(name: str) -> Named:
    """The name, for every field that a rule may name."""
    return lambda field: (field[1:] if field.startswith("=") else name,)


def _any_name(field: str) -> Iterable[str | None]:
    return (field[1:] if field.startswith("=") else None,)


NO_GUARD = Guard(Access(), {})


def bearer_of(metadata: Iterable[tuple[str, Any]] | None) -> str:
    """Of a call's metadata. Raises Unauthenticated where there are two: a proxy might have read the other."""
    found = [value for key, value in metadata or () if key == _HEADER]  # HTTP/2 has names in lower case only.
    if len(found) > 1:
        raise Unauthenticated("the request has two authorization headers")
    return str(found[0]) if found else ""


def fields_of(message: Any) -> Named:
    """The values of a message's field by path: `stream`, `model_spec.name`, `tasks.model_spec.name`."""

    def named(path: str) -> Iterable[str | None]:
        if path.startswith("="):
            return (path[1:],)
        value = message
        for part in _parts(path):
            value = getattr(value, part)
            if not _is_single(value):
                return _all_of(message, path)
        return (value,)

    return named


@functools.cache
def _parts(path: str) -> tuple[str, ...]:
    """Of a path of a rule, of which there are a few."""
    return tuple(path.split("."))


def _is_single(value: Any) -> bool:
    return value.__class__ is str or hasattr(value, "DESCRIPTOR")


def _all_of(message: Any, path: str) -> Iterable[str]:
    values = [message]
    for part in _parts(path):
        found = [getattr(value, part) for value in values]
        values = [inner for value in found for inner in ((value,) if _is_single(value) else value)]
    return values or ("",)


def values_of(parameters: Mapping[str, Any]) -> Named:
    """The values of a path's parameters."""
    return lambda field: (field[1:] if field.startswith("=") else str(parameters[field]),)
