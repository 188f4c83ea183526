"""`planner serve`: the questions of `planner recommend` in a browser."""

from typing import Annotated

import typer

EXPOSE = "expose"


def command(
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The port; 0 takes a free one.", min=0, max=65535)] = 8765,
    confirm: Annotated[
        str | None, typer.Option("--confirm", help="A --host that others can reach needs the word: expose.")
    ] = None,
) -> None:
    """Ask in a browser, and see the answer change with the question: layouts, memory, why, exports, links.

    Only this machine can ask, unless --host says otherwise; then a token in the printed address is asked for.

    Example: planner serve --port 8765
    """
    from planner.base.errors import InputError, MissingPackageError, shown

    local = host in ("127.0.0.1", "localhost", "::1")
    if not local and confirm != EXPOSE:
        raise InputError(
            f"--host is {shown(host)}, which others can reach; allowed: 127.0.0.1, localhost or ::1, or any host with "
            f"--confirm {EXPOSE}"
        )
    try:
        from planner.serve.app import run
    except ImportError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise MissingPackageError(
            f"planner serve needs {error.name}; in planner's folder: pip install '.[serve]'"
        ) from None
    run(host, port, local=local)
