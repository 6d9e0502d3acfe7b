"""Finds the plugins of the installed distributions, and loads them.

Loading has two phases. First all selected plugins are imported, in the order of their distributions' names.
Then the plugins' functions run, in the order that is declared with `plugin`, each in its own transaction. A
plugin's registrations and hooks take effect together when its function returns.

If a plugin fails, its record has the reason and the traceback, the runtime keeps none of its registrations
and hooks, and the other plugins load. Other side effects stay: imported modules remain in `sys.modules`
(except a module whose own import failed), and threads that the plugin started keep running. What such a
thread registers belongs to the plugin if the thread uses the plugin's registry, otherwise to the user. If an
import hangs, Python keeps the module's import lock, so later imports of the module hang too. A crash in C
code or `os._exit` ends the process.

An interrupt (KeyboardInterrupt, or an exception from the program's signal handler) passes through `load` and
leaves the runtime as it was before the call.
"""

from __future__ import annotations

from switchrail._core import Plugin
from switchrail.plugins.declaration import plugin
from switchrail.plugins.loader import GROUP, Loader

__all__ = ["GROUP", "Loader", "Plugin", "plugin"]
