"""docs/reference/cli.md: every command with its arguments and options, from the command line itself."""

import textwrap
from collections.abc import Iterator
from typing import Any

import typer.main
from typer.core import TyperArgument, TyperGroup, TyperOption

from docs.generate.markdown import bullet, code, page, paragraph
from headrace.cli import app

_INTRODUCTION = """\
`headrace` is the command line of a platform on this machine or, with `--platform compose`, in containers. `--json` may
stand anywhere and prints JSON. `headrace COMMAND --help` prints what is below."""
_METAVARS = {int: "N", float: "NUMBER"}
Command = Any
"""typer's; it has no public name."""


def document() -> str:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return page(
        "The command line", __name__, _INTRODUCTION, "## Options of every command",
        "\n".join(_options(group)), paragraph(group.epilog or ""), *_commands(group, "headrace"),
    )  # fmt: skip


def _commands(group: TyperGroup, path: str) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        yield f"## {path.removeprefix('headrace')} {name}".replace("  ", " ")
        if isinstance(command, TyperGroup):
            yield _text(command.help or "")
            yield from _commands(command, f"{path} {name}")
            continue
        arguments = [parameter for parameter in command.params if isinstance(parameter, TyperArgument)]
        has_options = any(isinstance(parameter, TyperOption) for parameter in command.params)
        usage = [path, name, *(["[OPTIONS]"] if has_options else []), *map(_metavar, arguments)]
        yield code(" ".join(usage))
        yield _text(command.help or "")
        yield "\n".join(bullet(f"`{_metavar(one)}`: {one.help}") for one in arguments if one.help)
        yield "\n".join(_options(command))


def _text(text: str) -> str:
    """Paragraphs filled anew; indented blocks and lists stay as they are."""
    blocks = textwrap.dedent(text.replace("\b\n", "")).strip("\n").split("\n\n")
    return "\n\n".join(_block(block) for block in blocks if block.strip())


def _block(block: str) -> str:
    if block.startswith("  "):
        return code(textwrap.dedent(block))
    return block if block.startswith("- ") else paragraph(block)


def _options(command: Command) -> Iterator[str]:
    for option in command.params:
        if isinstance(option, TyperOption) and not option.hidden and option.name != "help":
            names = ", ".join((*option.opts, *option.secondary_opts))
            yield bullet(f"`{names}{'' if option.is_flag else f' {_metavar(option)}'}`: {_sentence(option)}")


def _metavar(parameter: TyperArgument | TyperOption) -> str:
    if parameter.metavar:
        return parameter.metavar
    kind = parameter.type_descriptor.annotation
    name = (parameter.name or "").upper() if isinstance(parameter, TyperArgument) else _METAVARS.get(kind, "TEXT")
    name = name if parameter.nargs == 1 else f"{name}..."
    return f"[{name}]" if isinstance(parameter, TyperArgument) and not parameter.required else name


def _sentence(option: TyperOption) -> str:
    facts = [" ".join((option.help or "").split())]
    if option.required:
        facts.append("Required.")
    if option.envvar:
        facts.append(f"Also `{option.envvar}`.")
    default = option.default
    if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        facts.append(f"Default: `{default}`.")
    return " ".join(fact for fact in facts if fact)
