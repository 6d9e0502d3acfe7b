"""A user's module, found by name in every process that has it on its path."""

import os
import sys
from dataclasses import dataclass

import switchrail


@dataclass
class Settings:
    scale: float = 1.0
    name: str = "plain"


def target(value):
    return value


def double(value):
    return (value * 2,), {}


def add_one(result, value):
    return result + 1


class Owner:
    @classmethod
    def bound(cls, value):
        return (value + 10,), {}


def report(runtime=None):
    """A comparable description of a runtime; by default, of the process's current one."""
    runtime = runtime or switchrail.current_runtime()
    return {
        "fingerprint": runtime.fingerprint(),
        "stacks": [
            (backend.op, backend.name, backend.origin, backend.path, backend.effective_config)
            for backend in runtime._core.snapshot().backends
        ],
        "loaded": [
            plugin.qualified_name for plugin in runtime._loader.in_order() if plugin.state == "loaded"
        ],
        "plugins": {plugin.qualified_name: plugin.state for plugin in runtime.plugins},
        "target": target(1),
        "disabled": [hook.name for hook in runtime.hooks.disabled()],
        "waiting": [hook.target_name for hook in runtime.hooks.waiting()],
        "torch": "torch" in sys.modules,
        "process": os.getpid(),
    }


def restored(state):
    """Restore a runtime from `state`, which another process sent, and report on it."""
    return report(state.restore())
