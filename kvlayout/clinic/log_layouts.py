"""Log lines that name a layout: vLLM's, a connector's, or the environment variable's."""

from __future__ import annotations

from kvlayout.capture.fitting import fitting_layouts
from kvlayout.clinic.log_subject import AGREES, DIFFERS, IMPOSSIBLE, UNKNOWN, Answer, Subject
from kvlayout.errors import LayoutError
from kvlayout.facts.backends import get_backend
from kvlayout.layout import KVCacheLayout, layout_from_name
from kvlayout.placement import validate_kv_cache_layout
from kvlayout.versions import NEWEST

# FlashInfer's words say only what comes first inside a page, whatever is outside.
_WORDS = {"NHD": ("LBNHC", "BLNHC"), "HND": ("LBHNC", "BLHNC", "BHLNC")}


def used(values: dict, subject: Subject) -> Answer:
    """"Using HND KV cache layout for FLASHINFER backend"."""
    return _check("KV cache layout", values["layout"], subject, values.get("backend"))


def wished(values: dict, subject: Subject) -> Answer:
    """"NixlConnector setting KV cache layout to ..."."""
    return _check("connector's layout", values["layout"], subject, None)


def requested(values: dict, subject: Subject) -> Answer:
    """"VLLM_KV_CACHE_LAYOUT=..."."""
    return _check("requested layout", values["layout"], subject, None)


def _check(name: str, word: str, subject: Subject, backend: str | None) -> Answer:
    layout = layout_from_name(word)
    spelt = word if word == layout.name else f"{word} ({layout.name})"
    said = f"{spelt} for {backend}" if backend else spelt
    own = subject.layout_name
    ours = own or "not said"
    if wrong := _impossible(layout, subject, backend):
        return Answer(name, said, ours, IMPOSSIBLE, wrong)
    if own is None:
        fits = fitting_layouts(subject.config)
        names = ", ".join(one.name for one in fits)
        if len(fits) == 1:
            return Answer(name, said, names, AGREES, f"The strides fit {names} alone.")
        return Answer(name, said, names, UNKNOWN, f"The config names no layout; its strides fit {names}.")
    if layout_from_name(own) is layout:
        return Answer(name, said, ours, AGREES, f"{spelt} is the layout here.")
    if own in _WORDS.get(word, ()):
        return Answer(name, said, ours, DIFFERS, f"{word} is vLLM's name for {layout.name}; FlashInfer calls {own} "
                      "so too, as it says only what is first inside a page.")
    return Answer(name, said, ours, DIFFERS, f"{spelt} could be, but here it is {own}.")


def _impossible(layout: KVCacheLayout, subject: Subject, backend: str | None) -> str | None:
    """Why this cache can't have ``layout``, or None."""
    try:
        validate_kv_cache_layout(layout, subject.config.kv_cache_groups)
    except LayoutError as error:
        return f"{layout.name} {error.rule}."
    if backend is not None:
        version = subject.plan.selection.vllm_version if subject.plan else NEWEST
        try:
            takes = get_backend(backend, version).supported_kv_cache_layouts()
        except LayoutError:
            takes = None
        if takes is not None and layout not in takes:
            return f"{backend} takes {', '.join(one.name for one in takes)}, not {layout.name}."
        if subject.plan and subject.plan.backends:
            chosen = sorted({one.name for one in subject.plan.backends.values()})
            if backend not in chosen:
                return f"No layer here uses {backend}, but {', '.join(chosen)}."
    if subject.plan is None and subject.config.num_blocks > 1:
        fits = fitting_layouts(subject.config)
        if layout not in fits:
            return f"The tensors' strides fit {', '.join(one.name for one in fits) or 'none of the six'}, not " \
                   f"{layout.name}."
    return None
