"""Text tables or JSON, and errors as one line on stderr with status 2."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvlayout.errors import LayoutError

WIDTH = 80

AsJson = Annotated[bool, typer.Option("--json", help="Print plain JSON instead of tables.")]
Model = Annotated[str, typer.Argument(help="A preset's name, or a file: config.json, captured config or pasted log; "
                                      "- is stdin.")]
Backend = Annotated[str | None, typer.Option(help="Attention backend, such as FLASH_ATTN or FLASHINFER.")]
Layout = Annotated[str | None, typer.Option(help="Force this layout, unchecked: LBHNC, BLNHC, HND ...")]
TpSize = Annotated[int, typer.Option("--tp", help="Tensor-parallel size.")]
Blocks = Annotated[int | None, typer.Option("--blocks", help="Blocks to plan [64].")]
BlockSize = Annotated[int | None, typer.Option(help="Tokens a block.")]
CacheDtype = Annotated[str | None, typer.Option("--kv-dtype", help="vLLM's --kv-cache-dtype, such as fp8.")]


def command(function: Callable[..., int | None]) -> Callable[..., None]:
    """A command whose returned number is its exit status; a LayoutError is one line on stderr and status 2."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        try:
            status = function(*args, **kwargs)
        except LayoutError as error:
            fail(str(error))
        except BrokenPipeError:  # the reader, such as head, has had enough
            sys.stderr.close()
            status = 0
        raise typer.Exit(status or 0)

    run.__signature__ = inspect.signature(function, eval_str=True)
    return run


def fail(reason: str) -> None:
    """Say why on stderr, in one line, and end with status 2."""
    typer.echo(f"kvlayout: {' '.join(reason.split())}", err=True)
    raise typer.Exit(2)


def put_json(data: object) -> None:
    """Print ``data`` as JSON; numpy's numbers become plain ones."""
    typer.echo(json.dumps(data, indent=1, ensure_ascii=False, default=lambda value: value.item()))


def say(*lines: str) -> None:
    """Print lines of text, wrapped at 80 columns."""
    console = _console()
    for line in lines:
        console.print(line, markup=False, highlight=False)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """Print a table; columns whose name begins with "#" hold numbers, never wrapped, the rest are text."""
    if title:
        say("", title)
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        number = name.startswith("#")
        made.add_column(name.removeprefix("#"), justify="right" if number else "left", no_wrap=number,
                        overflow="fold")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    _console().print(made, highlight=False)


def _cell(value: object) -> Text:
    return Text(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))


def _console() -> Console:
    return Console(file=sys.stdout, width=WIDTH)
