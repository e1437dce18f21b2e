"""Formulas that are typed in, as functions over integer arrays; never Python's own ``eval``.

A text is read in three steps, each of which can only refuse: its characters and words, its syntax tree, and then
simpleeval, which is given nothing but the operators and functions below.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable

import numpy as np
from simpleeval import InvalidExpression, SimpleEval

from kvlayout.arrays import integers
from kvlayout.clinic.exact_integers import FUNCTIONS, OPERATORS, ExactError
from kvlayout.errors import LayoutError, check_type

MOST_CHARACTERS = 2_000
MOST_DEPTH = 60
_WORDS = ("if", "else", "and", "or", "not")
_TOKEN = re.compile(r"[ \t\r\n]+|[A-Za-z_][A-Za-z0-9_]*|0[xX][0-9a-fA-F_]+|[0-9][0-9_]*"
                    r"|//|<<|>>|<=|>=|==|!=|\*\*|[-+*%<>()&|^~,]")
_NODES = (ast.Expr, ast.Name, ast.Constant, ast.Call, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp)
# What other languages write, in the order in which it is looked for: (pattern, what it is, what to write).
_HABITS = tuple((re.compile(pattern), what, cure) for pattern, what, cure in (
    (r"^\s*[A-Za-z_]\w*\s*=(?!=)", "sets a name with '='", "Give only what stands right of the ="),
    (r"\(\s*(?:(?:unsigned|signed|const|std::)\s*)*(?:u?int\d*_t|int|long|size_t|unsigned|u?int(?:32|64))\s*\*?\)",
     "casts", "Write int64(block), int32(block) or uint32(block); nothing else wraps"),
    (r"&&", "has '&&'", "Write and"), (r"\|\|", "has '||'", "Write or"), (r"!(?!=)", "has '!'", "Write not"),
    (r"\?", "has '?'", "Write a if c else b"), (r";", "has ';'", "Give one expression, without ;"),
    (r"(?<!/)/(?!/)", "has '/'", "Divide with //"),
))
_HINTS = {"**": "Powers are refused; write the number, or shift with <<",
          ".": "Attributes and fractions are refused; give whole numbers and the names alone",
          "=": "Compare with ==", "[": "Subscripts are refused", '"': "Text is refused", "'": "Text is refused",
          ":": "Lambdas, slices and := are refused"}
_ALLOWED = "+ - * // % << >> & | ^ ~, comparisons, and or not, a if c else b, brackets, whole numbers, " + ", ".join(
    f"{name}()" for name in FUNCTIONS)


class Expression:
    """A formula over named whole numbers; ``used`` holds the names that it mentions, ``steps`` counts its steps."""

    def __init__(self, text: str, tree: ast.Expr, used: frozenset[str]):
        self.text, self.used, self._tree = text, used, tree
        self.steps = sum(isinstance(node, (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call))
                         for node in ast.walk(tree))

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def __call__(self, **values) -> np.ndarray:
        """Return the value at each point, an int64 array of the broadcast shape of the integers given by name.

        Raises LayoutError where a name is missing, and where a step divides by zero or passes 63 bits: nothing
        wraps but by int32() and uint32().
        """
        missing = sorted(self.used - values.keys())
        if missing:
            raise LayoutError(missing[0], None, "is used by the formula, but no value is given")
        return _evaluate(self.text, self._tree, {name: integers(name, values[name]) for name in self.used})


def parse_expression(text: str, names: Iterable[str]) -> Expression:
    """Return ``text`` as a function of ``names`` over integer arrays.

    Raises LayoutError naming the first character, word or step that isn't allowed, and what is.
    """
    check_type("formula", text, str)
    names = frozenset(names)
    if len(text) > MOST_CHARACTERS:
        raise LayoutError("formula", text[:60], f"has {len(text):,} characters; at most {MOST_CHARACTERS:,} are read")
    _check_habits(text)
    _check_words(text, names)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Line breaks are blanks here, as inside brackets.
            tree = ast.parse(re.sub(r"\s+", " ", text).strip(), mode="exec").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise LayoutError("formula", text, f"can't be read: {getattr(error, 'msg', None) or 'too deep'}",
                          f"Use {_ALLOWED}") from None
    if len(tree) != 1:
        raise LayoutError("formula", text, "must be one expression", f"Use {_ALLOWED}")
    return Expression(text, tree[0], _check_tree(text, tree[0], names))


def _check_habits(text: str) -> None:
    for pattern, what, cure in _HABITS:
        found = pattern.search(text)
        if found:
            raise LayoutError("formula", text, f"{what} at character {found.start() + 1}, which is not allowed", cure)


def _check_words(text: str, names: frozenset[str]) -> None:
    at, depth, after_number = 0, 0, False
    while at < len(text):
        found = _TOKEN.match(text, at)
        token = found.group() if found else text[at]
        if found is None or token == "**":
            raise LayoutError("formula", text, f"has {token!r} at character {at + 1}, which is not allowed",
                              f"{_HINTS[token]}. Allowed: {_ALLOWED}" if token in _HINTS else f"Allowed: {_ALLOWED}")
        is_word = token[0].isalpha() or token[0] == "_"
        if is_word and after_number:
            raise LayoutError("formula", text, f"has {token!r} right behind a number at character {at + 1}",
                              "Give whole numbers such as 4096, 4_096 or 0x1000")
        if is_word and token not in names and token not in FUNCTIONS and token not in _WORDS:
            raise LayoutError("formula", text, f"has the name {token[:60]!r}, which is not known",
                              f"Use {', '.join(sorted(names)) or 'numbers'}; functions {', '.join(FUNCTIONS)}")
        after_number = token[0].isdigit()
        depth += (token == "(") - (token == ")")
        if depth > MOST_DEPTH:
            raise LayoutError("formula", text, f"is nested deeper than {MOST_DEPTH} at character {at + 1}")
        at += len(token)


def _check_tree(text: str, tree: ast.AST, names: frozenset[str]) -> frozenset[str]:
    """Return the names that are used; an explicit stack, since the tree may be deep."""
    used, todo = set(), [(tree, 0)]
    while todo:
        node, depth = todo.pop()
        if depth > 3 * MOST_DEPTH:
            raise LayoutError("formula", text, "is nested too deep", "Split long sums by brackets")
        if not isinstance(node, _NODES):
            if isinstance(node, ast.Tuple):
                raise LayoutError("formula", text, "has a comma outside a function's brackets",
                                  "Write ten thousand as 10000 or 10_000")
            raise LayoutError("formula", text, f"has a {type(node).__name__}, which is not allowed",
                              f"Allowed: {_ALLOWED}")
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Constant):
            if type(node.value) is not int or node.value >= 2**63:
                raise LayoutError("formula", node.value, "must be a whole number below 2^63")
        elif isinstance(node, ast.Name):
            if node.id not in names:
                raise LayoutError("formula", text, f"has the name {node.id!r} without a call",
                                  f"Use {', '.join(sorted(names)) or 'numbers'}")
            used.add(node.id)
        elif isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
                raise LayoutError("formula", text, f"calls {ast.unparse(node.func)[:60]}, which is no function here",
                                  f"Call only {', '.join(FUNCTIONS)}")
            least, most = FUNCTIONS[node.func.id][1:]
            if any(isinstance(one, ast.Starred) for one in node.args):
                raise LayoutError("formula", text, "has a Starred argument, which is not allowed")
            if node.keywords or not least <= len(node.args) <= most:
                raise LayoutError("formula", text, f"gives {node.func.id}() {len(node.args)} arguments",
                                  f"Give it {least}" if least == most else f"Give it {least} or more")
            children = node.args
        # Operators have no coordinates of their own: simpleeval's table says which are known.
        todo += [(child, depth + 1) for child in children
                 if not isinstance(child, (ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context))]
        for op in [getattr(node, "op", None), *getattr(node, "ops", ())]:
            if isinstance(op, (ast.operator, ast.unaryop, ast.cmpop)) and type(op) not in OPERATORS:
                raise LayoutError("formula", text, f"has the operator {type(op).__name__}, which is not allowed",
                                  f"Allowed: {_ALLOWED}")
    return frozenset(used)


def _evaluate(text: str, tree: ast.Expr, values: dict[str, np.ndarray]) -> np.ndarray:
    evaluator = _Arrays(operators={}, functions={}, names=values)
    try:
        return np.asarray(evaluator._eval(tree), dtype=np.int64)
    except ExactError as error:
        raise LayoutError("formula", text, str(error)) from None
    except (InvalidExpression, RecursionError) as error:
        raise LayoutError("formula", text, f"can't be worked out: {type(error).__name__}") from None


class _Arrays(SimpleEval):
    """simpleeval over arrays: choices are made point by point, and steps are judged only where they are taken."""

    def __init__(self, **tables):
        super().__init__(**tables)
        self.taken = np.True_
        self.operators = {kind: self._judged(work) for kind, work in OPERATORS.items()}
        self.functions = {name: self._judged(work) for name, (work, *_) in FUNCTIONS.items()}

    def _judged(self, work):
        return lambda *operands: work(self.taken, *operands)

    def _where(self, condition: np.ndarray, node: ast.AST) -> np.ndarray:
        before = self.taken
        self.taken = before & condition
        try:
            return self._eval(node)
        finally:
            self.taken = before

    def _eval_constant(self, node):
        return np.int64(node.value)

    def _eval_ifexp(self, node):
        test = self._eval(node.test) != 0
        return np.where(test, self._where(test, node.body), self._where(~test, node.orelse))

    def _eval_boolop(self, node):
        found = self._eval(node.values[0])
        for value in node.values[1:]:
            on = (found != 0) if isinstance(node.op, ast.And) else (found == 0)
            found = np.where(on, self._where(on, value), found)
        return found

    def _eval_compare(self, node):
        left, found = self._eval(node.left), np.int64(1)
        for op, comparator in zip(node.ops, node.comparators):
            right = self._where(found != 0, comparator)
            found = found & self.operators[type(op)](left, right)
            left = right
        return found
