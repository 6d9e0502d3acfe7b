"""Finding the plugins of the installed distributions, and loading them.

Loading has two phases. First all selected plugins are imported, in the order of their distributions' names.
Then their functions run, in the order that they declare with `plugin`, each in a transaction of its own: what
it registers and hooks comes into force when it returns, whole or not at all.

A plugin can fail in any way that Python can tell; then its record says how, with the traceback, nothing of
it stays in the runtime, and the others load. What it did elsewhere stays done, for nobody can know what that
was: modules that it imported are in `sys.modules` (a module whose own import failed is taken out by Python),
threads that it started run. What these register belongs to the plugin where they use the registry that its
function was given; without it nothing tells them from the program's threads, and it is the user's. A module
whose import hangs stays locked: who imports it later waits as well.
What ends the process is beyond this: a crash in C code, `os._exit`.

An interrupt (KeyboardInterrupt, or what the program's handler of a signal raises) passes through `load` and
leaves the runtime as it was before the call.
"""

from __future__ import annotations

from switchrail._core import Plugin
from switchrail.plugins.declaration import plugin
from switchrail.plugins.loader import GROUP, Loader

__all__ = ["GROUP", "Loader", "Plugin", "plugin"]
