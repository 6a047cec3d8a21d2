"""login, logout, whoami, token new, certs: the token that the platform is shown, new tokens, and certificates for
TLS."""

import socket
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.client.credentials import checked, store
from headrace.client.platform import Client
from headrace.commands.session import CommandApp, Session
from headrace.commands.terminal import echo
from headrace.places import SERVICES

app = CommandApp(help="Make tokens for the access file.", no_args_is_help=True)


def login(session: Session) -> None:
    """Keep a token for the platform's doors; it is read from the terminal, or from standard input."""
    text = typer.prompt("Token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    token = checked(text, "standard input")
    client = session.client(token=token)
    found = client.whoami()
    path = store(_doors(client), token)
    session.show(found, lambda: echo(f"{found['name']}: {', '.join(found['roles'])}; kept in {path}"))


def logout(session: Session) -> None:
    """Forget the token that `headrace login` has kept for the platform."""
    path = store(_doors(session.client(token="")), "")
    session.show({"forgotten": str(path)}, lambda: echo(f"forgotten in {path}"))


def whoami(session: Session) -> None:
    """Show whose token this command sends, and its roles."""
    found: dict[str, Any] = dict(session.client().whoami())
    session.show(found, lambda: echo(f"{found['name']}: {', '.join(found['roles'])}"))


@app.command("new")
def token_new(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The principal's name; the history shows it.")],
    roles: Annotated[list[str], typer.Option("--roles", help="Such as operator or predict:ctr-*; repeatable.")],
) -> None:
    """Print a new token, and the lines for the access file: the token itself is kept nowhere."""
    from common.access.first_start import lines_of
    from common.access.principal import check_name, check_roles
    from common.access.tokens import digest_of, new_token

    check_name(name)
    check_roles(roles)
    token = new_token()
    digest = digest_of(token)
    lines = lines_of(name, roles, digest)
    document = {"token": token, "principal": {"name": name, "roles": roles, "token_sha256": [digest]}}
    session.show(document, lambda: echo(f"{token}\n\n{lines}", nl=False))


def certs(
    session: Session,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Of the authority and its certificates.")],
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="None: the four services.")] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="A further name or address of the machine; repeatable.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="Until a new certificate ends.")] = 365,
) -> None:
    """Issue certificates for TLS from a certificate authority of your own, which is made where there is none.

    Each NAME gets DIR/NAME/certificate.pem and key.pem, unless its certificate is for all hosts and has more than a
    third of --days left. A new certificate keeps the hosts of the certificate before.
    """
    from common.access.authority import LOCAL_HOSTS, days_left, issue_missing

    wanted = names or list(SERVICES)
    issued = issue_missing(directory, wanted, hosts=[*LOCAL_HOSTS, socket.gethostname(), *(host or [])], days=days)
    found = {name: {"days_left": days_left(directory / name), "issued": directory / name in issued} for name in wanted}

    def print_lines() -> None:
        for name, state in found.items():
            word = "issued" if state["issued"] else "kept"
            echo(f"{directory / name}: {word}, ends in {state['days_left']:.0f} days")

    session.show(found, print_lines)


def _doors(client: Client) -> list[str]:
    """Every address under which the platform is asked."""
    found = client.addresses
    doors = [found.registry, found.ingest, found.trainer, *found.serving, found.predictions, found.registry_grpc]
    return [door for door in doors if door]
