"""Classes whose methods a round calls while it trains (section `training`, key `hooks`).

hooks:
  - audit.Audit                                                     # class Audit of audit.py beside model.yaml
  - {class: tools.log.Log, arguments: {every: 10}, chief_only: true}
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from common.definition.fields import Fields
from common.errors import InvalidInput

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_MOST = 16


@dataclass(frozen=True)
class HookClass:
    """Attributes:
    path: of the class, from the definition's folder.
    arguments: of its constructor, by name.
    chief_only: one of a round's processes calls it.
    """

    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    chief_only: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def file(self) -> str:
        return self.path.rpartition(".")[0].replace(".", "/") + ".py"


def parse_hooks(section: object) -> tuple[HookClass, ...]:
    """Raises InvalidInput: which entry, what was expected."""
    if not isinstance(section, list | tuple) or len(section) > _MOST:
        raise InvalidInput(f"training: hooks must be a list of {_MOST} classes at most, got {section!r}")
    hooks = tuple(_hook(entry) for entry in section)
    if len({hook.name for hook in hooks}) < len(hooks):
        raise InvalidInput("training: hooks: two classes have one name, by which what they remember is stored")
    return hooks


def check_hooks(hooks: tuple[HookClass, ...], module: str | None, files: Mapping[str, bytes]) -> None:
    """Raises InvalidInput: there is no module, or no such file."""
    if hooks and module is None:
        raise InvalidInput("training: hooks go with a module; an estimator's network is not the user's to look into")
    for hook in hooks:
        if hook.file not in files:
            raise InvalidInput(f"training: hooks: {hook.path} is a class of {hook.file}, which the definition lacks")


def _hook(entry: object) -> HookClass:
    fields = Fields("hooks", {"class": entry} if isinstance(entry, str) else entry)
    path, arguments = fields.text("class"), fields.take("arguments", {})
    if not _PATH.fullmatch(path):
        raise InvalidInput(f"training: hooks: class must be file.Class, got {path!r}")
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise InvalidInput(f"training: hooks: arguments of {path} must be a mapping of names, got {arguments!r}")
    hook = HookClass(path, dict(arguments), fields.flag("chief_only", False))
    fields.finish()
    return hook
