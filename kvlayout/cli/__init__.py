"""The command line, for people without a browser. typer and rich are imported by the first call of ``main``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that ``sys.argv`` asks for; ends the process with its status."""
    try:
        from kvlayout.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        print(f"kvlayout: the command line needs {error.name}: pip install 'kvlayout[cli]'", file=sys.stderr)
        sys.exit(2)
    app(prog_name="kvlayout")
