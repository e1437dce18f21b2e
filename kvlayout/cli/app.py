"""All commands in one application."""

from __future__ import annotations

import typer

from kvlayout.cli import decode, diff, explain, formula, lint, log, matrix, score, shape, transfer, verify, words

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="What a vLLM KV cache looks like in memory. A cache is a preset, a config.json, a captured config, or text "
         "pasted from a log (- reads it from stdin). Exit status: 0 clean, 1 something is wrong or differs, 2 bad "
         "input. --json prints plain JSON.")
app.command("explain")(explain.explain)
app.command("decode")(decode.decode)
app.command("formula")(formula.formula)
app.command("lint")(lint.lint)
app.command("shape")(shape.shape)
app.command("verify")(verify.verify)
app.command("diff")(diff.diff)
app.command("log")(log.log)
app.command("transfer")(transfer.transfer)
app.command("names")(words.names)
app.command("score")(score.score)
app.command("matrix")(matrix.matrix)
