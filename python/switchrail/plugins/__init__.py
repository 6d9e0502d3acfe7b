"""Finds the plugins of the installed distributions, and loads them.

Loading has two phases. First all selected plugins are imported, in the order of their distributions' names.
Then their functions run in the order that they declare with `plugin`, each in its own transaction. The
plugin's registrations and hooks take effect when its function returns: all of them, or none.

If a plugin fails, its record has the reason and the traceback, the runtime keeps none of its registrations
and hooks, and the other plugins load. Other side effects stay: imported modules remain in `sys.modules`
(except a module whose own import failed), and threads that the plugin started keep running. Registrations by
such threads belong to the plugin if they use its registry, otherwise to the user. A module whose import hangs
stays locked, so later imports of it hang too. A crash in C code or `os._exit` still ends the process.

An interrupt (KeyboardInterrupt, or an exception from the program's signal handler) passes through `load` and
leaves the runtime as it was before the call.
"""

from __future__ import annotations

from switchrail._core import Plugin
from switchrail.plugins.declaration import plugin
from switchrail.plugins.loader import GROUP, Loader

__all__ = ["GROUP", "Loader", "Plugin", "plugin"]
