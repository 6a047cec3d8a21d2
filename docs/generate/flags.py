"""docs/reference/flags.md: the command line of serving, from its table of flags."""

from docs.generate.markdown import bullet, page
from services.serving.options.flags import SUPPORTED, UNSUPPORTED, Flag

_INTRODUCTION = """\
`python -m services.serving` takes TensorFlow Serving's flags, and further flags. What they are for:
[Serve folders](../guide/serve-folders.md). Written `--name=value` or `--name value`; a boolean also `--name` and
`--noname`. A flag sets the `SERVING_*` variable of its setting ([Settings](settings.md)) and wins over it. A flag that
is unknown, or that asks for what is not done here, ends the start with exit status 2 and a sentence that names it."""
_REFUSED = """\
Refused by name, with the reason. A value that asks for what happens anyway is taken, so that command lines of
TensorFlow Serving need not be edited."""
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_SAMPLES = {bool: ("true",), int: ("1",), float: ("1",), str: ("x",)}


def document() -> str:
    return page(
        "Serving's flags", __name__, _INTRODUCTION,
        "## Taken", "\n".join(map(_taken, SUPPORTED)),
        "## Refused", _REFUSED, "\n".join(map(_refused, UNSUPPORTED)),
    )  # fmt: skip


def _taken(flag: Flag) -> str:
    assert flag.set is not None
    variables = ", ".join(
        f"`SERVING_{setting.upper()}`" for sample in _SAMPLES[flag.kind] for setting in flag.set(sample)
    )
    return bullet(f"`--{flag.name}` ({_KINDS[flag.kind]}; {variables}): {flag.meaning}.")


def _refused(flag: Flag) -> str:
    taken = ", ".join(f"`{value}`" for value in flag.taken if value)
    return bullet(f"`--{flag.name}`{f' (taken: {taken})' if taken else ''}: {flag.refusal}.")
