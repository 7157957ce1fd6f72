"""The Jinja environment chat templates are written for (transformers' conventions), with every step counted.

A sandbox keeps a template from Python's internals; here loops, calls, filters and operators also draw on a Budget, so
that a hostile template ends in an error instead of a hang.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from backends.text import template_limits as limits
from backends.text.template_limits import BUDGET

# No chat template needs them, and each can be made to take hours or gigabytes
_NO_FILTERS = ("urlize", "wordwrap", "xmlattr")
_NO_METHODS = frozenset({"translate", "maketrans", "expandtabs", "encode"})
_WIDTH_FILTERS = frozenset({"center", "indent", "batch", "slice", "round"})
_PRINTING_FILTERS = frozenset({"string", "pprint", "tojson", "upper", "lower", "trim", "escape", "e", "safe"})


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant text for training; serving prints what is inside."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs templates. Shared by threads: what a rendering has left is in BUDGET, not here."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
            finalize=_printed,
        )
        self.globals.pop("lipsum")
        self.globals.update(raise_exception=_raise, strftime_now=time.strftime, namespace=_PublicNamespace)
        self.filters["tojson"] = _tojson
        for name in _NO_FILTERS:
            self.filters.pop(name)
        self.filters = {name: _counted(name, function) for name, function in self.filters.items()}
        self.filters.update(_each=_Each, _concat=_concat)

    def template(self, source: str) -> tuple[jinja2.Template, frozenset[str]]:
        """The compiled template, and the variables it reads from outside."""
        tree = self.parse(source)
        variables = frozenset(meta.find_undeclared_variables(tree))
        code = self.compile(_Guard().visit(tree))
        template = self.template_class.from_code(self, code, self.make_globals(None))
        return template, variables - self.globals.keys()

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return not (isinstance(obj, str) and attr in _NO_METHODS) and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        BUDGET.get().step()
        limits.check_binary(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = BUDGET.get()
        budget.step()
        if isinstance(function, Macro):
            budget.write(budget.source_length)  # it holds no more literal text than that
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            args = limits.check_method(method.__name__, owner, args, kwargs)
        return super().call(context, function, *args, **kwargs)


class _Guard(NodeTransformer):
    """Puts counting into what the environment has no hook for: loops and the `~` operator."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - Jinja calls it by this name
        self.generic_visit(node)
        literal = sum(len(data.data) for part in node.body for data in part.find_all(nodes.TemplateData))
        node.iter = nodes.Filter(node.iter, "_each", [nodes.Const(literal)], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802 - Jinja calls it by this name
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "_concat", [], [], None, None, lineno=node.lineno)


class _Each:
    """The items of a loop; each draws on the budget, with the literal text of the loop's body."""

    def __init__(self, items: Any, num_literal: int) -> None:
        self._items = items
        self._num_literal = num_literal

    def __iter__(self) -> Iterator[Any]:
        budget = BUDGET.get()
        for item in self._items:
            budget.step()
            budget.write(self._num_literal)
            yield item

    def __len__(self) -> int:
        return len(self._items)


class _PublicNamespace(Namespace):
    """`namespace()` without names that Python keeps for itself."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace cannot hold '{name}'")
        super().__setitem__(name, value)


def _printed(value: Any) -> Any:
    budget = BUDGET.get()
    budget.step()
    limits.check_printable(value)
    budget.write(len(value) if isinstance(value, str) else 0)
    return value


def _concat(parts: list[Any]) -> str:
    BUDGET.get().step()
    return "".join(map(str, limits.checked_join("", parts)))


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that draws on the budget and refuses arguments that make it run away.

    Filters that get the environment or context have it as their first argument.
    """
    passed = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        BUDGET.get().step()
        own, (value, *rest) = args[:passed], args[passed:]
        if name == "join":
            value = _checked_items(value, rest, kwargs)
        else:
            _check_filter(name, value, rest, kwargs)
        return function(*own, value, *rest, **kwargs)

    return counted


def _checked_items(value: Iterable[Any], rest: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    return limits.checked_join(str(rest[0] if rest else kwargs.get("d", "")), value)


def _check_filter(name: str, value: Any, rest: list[Any], kwargs: dict[str, Any]) -> None:
    given = [*rest, *kwargs.values()]
    if name in _WIDTH_FILTERS:
        for argument in given:
            limits.check_width(argument)
    elif name in _PRINTING_FILTERS:
        limits.check_printable(value)
    elif name == "format":
        limits.check_percent_format(str(value), given)
    elif name == "replace" and len(given) >= 2:
        limits.check_replace(str(value), str(given[0]), str(given[1]))
    elif name == "sum" and any(isinstance(argument, list | tuple) for argument in given):
        raise SecurityError("sum adds numbers")


def _raise(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, without Jinja's escapes for HTML."""
    limits.check_width(indent)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
