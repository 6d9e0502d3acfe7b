"""Stand-in: SGLang's own hooks."""

from collections import defaultdict
from enum import Enum
from typing import NamedTuple


class HookSource(NamedTuple):
    plugin_name: str
    dist_name: str | None


class HookType(Enum):
    BEFORE = "before"
    AFTER = "after"


class HookRegistry:
    _hooks = defaultdict(list)  # noqa: RUF012

    @classmethod
    def register(cls, target, hook, hook_type=HookType.AFTER, *, source=None):
        cls._hooks[target].append((hook_type, hook, source))

    @classmethod
    def apply_hooks(cls):
        pass
