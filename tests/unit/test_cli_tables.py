"""The command line's tables: every word is whole, every number too, and a terminal is not overrun."""

import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvlayout.bench import backend_matrix
from kvlayout.cli import show
from kvlayout.cli.app import app

QWEN = "Qwen/Qwen3-0.6B"
NAME = "model.layers.0.self_attn.attn"
WORD = st.text("abc._[]xyz", min_size=1, max_size=60)
CELL = st.lists(WORD, max_size=12).map(" ".join)


@st.composite
def tables(draw):
    number = draw(st.integers(1, 4))
    columns = [draw(st.sampled_from(("#", ""))) + draw(WORD) for _ in range(number)]
    cells = [[draw(st.integers(0, 10**18)) if name.startswith("#") else draw(CELL) for name in columns]
             for _ in range(draw(st.integers(0, 4)))]
    return columns, cells


def words_of(columns, rows):
    texts = [name.removeprefix("#") for name in columns]
    texts += [f"{one:,}" if isinstance(one, int) else one for row in rows for one in row]
    return sorted(word for text in texts for word in text.split())


@pytest.fixture(scope="module")
def out():
    class Out:
        """A stdout of our own: hypothesis and a function's fixture don't go together."""
        encoding, text = "utf-8", ""

        def write(self, text):
            self.text += text

        def flush(self):
            pass

        def isatty(self):
            return self.columns is not None
    return Out()


def table(out, columns, rows, terminal=None):
    out.text, out.columns = "", terminal
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        if terminal is not None:
            patch.setenv("COLUMNS", str(terminal))
        show.table(columns, rows)
    return re.sub(r"\x1b\[\d*m", "", out.text)  # a terminal's header is bold


@settings(max_examples=60, deadline=None)
@given(tables())
def test_no_word_is_broken(out, made):
    text = table(out, *made)
    assert sorted(text.split()) == words_of(*made)
    columns, rows = made
    need = sum(max(map(len, words_of([name], [[row[index]] for row in rows])), default=0)
               for index, name in enumerate(columns)) + 2 * (len(columns) - 1)
    assert max(map(len, text.splitlines())) <= max(80, need)


@settings(max_examples=60, deadline=None)
@given(tables(), st.integers(20, 200))
def test_a_terminal_is_overrun_by_numbers_alone(out, made, terminal):
    columns, rows = made
    text = table(out, columns, rows, terminal)
    least = sum(max([len(name) - 1, *(len(f"{row[index]:,}") for row in rows)]) if name.startswith("#") else 12
                for index, name in enumerate(columns)) + 2 * (len(columns) - 1)
    assert max(map(len, text.splitlines())) <= max(80, terminal, least)
    assert "".join(sorted("".join(text.split()))) == "".join(sorted("".join(words_of(columns, rows))))


def test_a_line_wraps_between_words(capsys):
    show.say(f"{'a' * 100} b {'c' * 40} {'d' * 70}")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["a" * 100, f"b {'c' * 40}", "d" * 70]


@pytest.mark.parametrize("arguments", [
    ("formula", QWEN, "--classic", "nhd-as-hnd"), ("decode", QWEN, "--slot", "37"), ("explain", QWEN)], ids=" ".join)
def test_names_of_layers_are_whole(arguments):
    words = CliRunner().invoke(app, arguments).stdout.split()
    assert {word.rstrip(",") for word in words if word.startswith("model.layers.0.")} == {NAME}


def test_names_of_backends_are_whole():
    lines = CliRunner().invoke(app, ["matrix", "0.33.0"]).stdout.splitlines()
    assert {row.backend for row in backend_matrix("0.33.0")} <= {line.split()[0] for line in lines if line}


def test_alike_hits_are_one_row():
    done = CliRunner().invoke(app, ["formula", QWEN, "--classic", "nhd-as-hnd"]).stdout
    told = " ".join(done.split())
    assert done.count("63,504") == 1 and "and 15 more layers, each," in told and told.endswith("and 12 more.")
    one = CliRunner().invoke(app, ["formula", QWEN, "--classic", "nhd-as-hnd", "--layer", "3"]).stdout
    assert "more" not in one and one.count("model.layers.3.self_attn.attn") == 4
