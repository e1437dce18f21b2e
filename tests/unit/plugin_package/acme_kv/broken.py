"""A module that can't be imported."""

import acme_kv_needs_this  # noqa: F401
