"""Checked access to a config.json: every value is of the right type, or a LayoutError names the field."""

from __future__ import annotations

from kvlayout.errors import LayoutError

REQUIRED = object()
# Far above any model; a number beyond them is a mistake that would only cost time and memory.
MAX_LAYERS = 10_000
MAX_NUMBER = 2**31 - 1


class Fields:
    """The fields of a config, or of a part of it whose path is ``path`` ("text_config.").

    A field may have several names, of which the first one present counts. Where the config leaves a field out, the
    default of the model type's Hugging Face class (``defaults``) counts, then the caller's.
    """

    def __init__(self, values: dict, path: str = "", defaults: dict | None = None):
        self.values, self.path, self.defaults = values, path, defaults or {}

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, default: object = None) -> object:
        """Return the raw value: the config's (null included), the class default's, or ``default``."""
        if name in self.values:
            return self.values[name]
        return self.defaults.get(name, default)

    def number(self, *names: str, default: object = REQUIRED, minimum: int = 1) -> int | None:
        """Return a whole number of at least ``minimum``; ``default`` where the field is left out or null.

        Raises LayoutError naming the field for text, fractions, NaN, truth values and numbers that are too small.
        """
        name, value = self._first(names)
        if value is None:
            return self._default(names, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(name, value, "must be a whole number")
        if value < minimum:
            self.fail(name, value, f"must be at least {minimum}")
        if value > MAX_NUMBER:
            self.fail(name, value, f"is larger than in any model (at most {MAX_NUMBER:,})")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a truth value; ``default`` where the field is left out or null."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(name, value, "must be true or false")
        return value

    def text(self, *names: str, default: object = REQUIRED) -> str | None:
        """Return a text; ``default`` where the field is left out or null."""
        name, value = self._first(names)
        if value is None:
            return self._default(names, default)
        if not isinstance(value, str):
            self.fail(name, value, "must be text")
        return value

    def items(self, name: str) -> list | None:
        """Return a list; None where the field is left out or null."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            self.fail(name, value, "must be a list")
        return list(value)

    def part(self, name: str, defaults: dict | None = None) -> Fields:
        """Return the fields of a nested object."""
        value = self.get(name)
        if not isinstance(value, dict):
            self.fail(name, value, "must be an object")
        return Fields(value, f"{self.path}{name}.", defaults)

    def num_layers(self, name: str = "num_hidden_layers") -> int:
        """Return a number of layers."""
        layers = self.number(name)
        if layers > MAX_LAYERS:
            self.fail(name, layers, f"is more layers than any model has (at most {MAX_LAYERS:,})")
        return layers

    def per_layer(self, name: str, num_layers: int, allowed: tuple[str, ...]) -> list[str] | None:
        """Return one text a layer, each of ``allowed``; None where the field is left out or null."""
        items = self.items(name)
        if items is None:
            return None
        if len(items) != num_layers:
            self.fail(name, items, f"has {len(items)} entries for {num_layers} layers")
        unknown = [item for item in items if not isinstance(item, str) or item not in allowed]
        if unknown:
            self.fail(name, unknown[0], f"is not a kind of layer this model type has ({', '.join(allowed)})")
        return items

    def fail(self, name: str, value: object, rule: str, cure: str = ""):
        """Raise the LayoutError of this field."""
        raise LayoutError(f"{self.path}{name}", value, rule, cure)

    def _first(self, names: tuple[str, ...]) -> tuple[str, object]:
        present = [name for name in names if self.get(name) is not None]
        name = present[0] if present else names[0]
        return name, self.get(name)

    def _default(self, names: tuple[str, ...], default: object) -> object:
        if default is REQUIRED:
            self.fail(names[0], None, "is missing", "Add it to the config; it is never guessed")
        return default
