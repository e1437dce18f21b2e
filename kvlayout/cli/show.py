"""Text tables or JSON, and errors as one line on stderr with status 2."""

from __future__ import annotations

import functools
import inspect
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvlayout.errors import LayoutError

WIDTH = 80
_GAP = 2
_LEAST = 12  # columns that text keeps on a terminal

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
    """Print lines of text, wrapped at 80 columns between words."""
    for line in lines:
        _console(_longest_word([line])).print(line, markup=False, highlight=False)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """Print a table; columns whose name begins with "#" hold numbers, never wrapped, the rest are text.

    It is wider than 80 columns where words would break otherwise, since a name is to be found and copied whole; on a
    terminal as wide as that is, where the longest break.
    """
    if title:
        say("", title)
    cells = [[_text(value) for value in row] for row in rows]
    widths = _widths(columns, cells)
    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for name, width in zip(columns, widths):
        justify = "right" if name.startswith("#") else "left"
        made.add_column(Text(name.removeprefix("#")), justify=justify, width=width, overflow="fold")
    for row in cells:
        made.add_row(*map(Text, row))
    _console(sum(widths) + _GAP * (len(widths) - 1)).print(made, highlight=False)


def _widths(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    """Each column's width: room for its longest word, or number; texts share what is left of the line."""
    texts = [[name.removeprefix("#"), *(row[index] for row in cells)] for index, name in enumerate(columns)]
    whole = [max(map(cell_len, column)) for column in texts]
    widths = [most if name.startswith("#") else _longest_word(column)
              for name, column, most in zip(columns, texts, whole)]
    gaps = _GAP * (len(widths) - 1)
    for _ in range(WIDTH - gaps - sum(widths)):
        short = [index for index, width in enumerate(widths) if width < whole[index]]
        if short:
            widths[min(short, key=widths.__getitem__)] += 1
    if sys.stdout.isatty():
        most = max(WIDTH, shutil.get_terminal_size().columns)
        wordy = [index for index, name in enumerate(columns) if not name.startswith("#")]
        while sum(widths) + gaps > most and wordy and max(widths[index] for index in wordy) > _LEAST:
            widths[max(wordy, key=widths.__getitem__)] -= 1
    return widths


def _longest_word(texts: Sequence[str]) -> int:
    return max((cell_len(word) for text in texts for word in text.split()), default=0)


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _console(width: int) -> Console:
    return Console(file=sys.stdout, width=max(WIDTH, width))
