"""The environment variables that Switchrail reads; docs/environment.md is their reference."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "SWITCHRAIL_"
"""How their names begin."""

ALLOW_LIST: Final = "SWITCHRAIL_PLUGINS"
"""Names of the plugins that may be loaded, separated by commas; not set: all."""

PLATFORM: Final = "SWITCHRAIL_PLATFORM"
"""The platform in use, a built-in kind or a platform plugin; not set: what is found."""

LOCK: Final = "SWITCHRAIL_LOCK"
"""A lock file; plugins that differ from it are not imported."""

TIMEOUT: Final = "SWITCHRAIL_LOAD_TIMEOUT"
"""How many seconds one plugin may take to load, or `none`: as long as it takes."""

TIMES: Final = "SWITCHRAIL_TIMES"
"""The file with the times that `switchrail tune` measured; not set: one in the user's cache folder."""

VARIABLES: Final = (ALLOW_LIST, PLATFORM, LOCK, TIMEOUT, TIMES)
"""All of them."""
