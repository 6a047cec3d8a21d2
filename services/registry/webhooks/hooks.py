"""The file of webhooks (REGISTRY_WEBHOOKS), read once at the start.

webhooks:
  - name: ops
    url: https://example.com/headrace
    secret: a-text-of-16-characters-or-more
    events: [version, verdict, promote, rollback, failure]     # default: all
    models: [flights-late]                                     # default: all
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from common.definition.fields import Fields
from common.errors import InvalidInput
from common.strict_yaml import read_yaml

EVENTS = ("version", "verdict", "promote", "rollback", "failure")
_MOST_HOOKS, _LEAST_SECRET = 8, 16
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True)
class Webhook:
    name: str
    url: str
    secret: str
    events: tuple[str, ...] = EVENTS
    models: tuple[str, ...] = ()

    def wants(self, event: str, model: str) -> bool:
        return event in self.events and (not self.models or model in self.models)


def read_webhooks(path: Path) -> tuple[Webhook, ...]:
    """Raises InvalidInput: the file cannot be read, or which hook's which key is wrong."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"REGISTRY_WEBHOOKS names {path}, which cannot be read: {error.strerror}") from error
    fields = Fields(str(path), read_yaml(content, str(path)))
    listed = fields.take("webhooks")
    fields.finish()
    if not isinstance(listed, list) or len(listed) > _MOST_HOOKS:
        raise InvalidInput(f"{path}: webhooks must be a list of at most {_MOST_HOOKS}")
    hooks = tuple(_hook(section, f"{path}: webhooks[{place}]") for place, section in enumerate(listed))
    if len({hook.name for hook in hooks}) < len(hooks):
        raise InvalidInput(f"{path}: two webhooks have the same name")
    return hooks


def _hook(section: object, where: str) -> Webhook:
    if not isinstance(section, Mapping):
        raise InvalidInput(f"{where} must be a mapping with name, url and secret")
    fields = Fields(where, section)
    hook = fields.made(Webhook)
    fields.finish()
    if not _NAME.fullmatch(hook.name):
        raise InvalidInput(f"{where}: name must be small letters, digits and hyphens, got {hook.name!r}")
    if not _is_address(hook.url):
        raise InvalidInput(
            f"{where}: url must begin with http:// or https:// and name a host, without spaces and in ASCII"
        )
    if len(hook.secret) < _LEAST_SECRET:
        raise InvalidInput(f"{where}: secret must have {_LEAST_SECRET} characters or more")
    if unknown := set(hook.events) - set(EVENTS):
        raise InvalidInput(f"{where}: events has {', '.join(sorted(unknown))}; there are {', '.join(EVENTS)}")
    return hook


def _is_address(url: str) -> bool:
    """Whether http.client can send there: its refusal repeats the path, which may be a secret."""
    if not url.isascii() or any(mark.isspace() or not mark.isprintable() for mark in url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:  # a port that is none, brackets that do not close, a part of the host that is too long
        return False
