"""Objects given as backends that raise wherever they are looked at."""

from kvlayout.bench import PrototypeBackend


class BadRepr:
    def __repr__(self):
        raise RuntimeError("no repr")


class Nameless:
    @property
    def __name__(self):
        raise RuntimeError("no name")


class Closed:
    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")


class OddMeta(type):
    @property
    def __name__(cls):
        raise RuntimeError("no name")


def odd(**methods):
    return type("Odd", (PrototypeBackend,), methods)


HOSTILE = {
    "abstract": odd(__abstractmethods__=5), "name": Nameless(), "getattr": Closed(), "repr": BadRepr(),
    "meta": OddMeta("Odd", (PrototypeBackend,), {}), "layout": odd(layouts=(BadRepr(),)), "list": odd(layouts=[[]]),
    "get_name": odd(get_name=lambda: 5), "size": odd(kernel_block_sizes=(BadRepr(),)),
    "interior": odd(interior=classmethod(lambda cls, spec: BadRepr())),
    "spec": odd(customize_spec=classmethod(lambda cls, spec: BadRepr())),
    "ends": odd(customize_spec=classmethod(lambda cls, spec: exit(3))),
}
