"""A runtime as data to send to worker processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from switchrail import _core, arguments
from switchrail.errors import UnpicklableError
from switchrail.processes.restore import make_plans, restore
from switchrail.processes.state import State, read

if TYPE_CHECKING:
    from switchrail._core import RoutePlan
    from switchrail.runtime import Runtime


@dataclass(frozen=True, slots=True)
class RuntimeState(State):
    """All data that determines a runtime's behaviour, as a small picklable value.

    Pass it to a worker as an argument and call `restore` there, or pass the bound method `state.restore` as
    the worker's initializer. Both work with any start method. The attributes are those of
    `switchrail.processes.state.State`.
    """

    @classmethod
    def of(cls, runtime: Runtime, *plans: RoutePlan) -> RuntimeState:
        """The state of a runtime and of plans.

        Raises:
            UnpicklableError: Another process can't find an object of the runtime by name; the error names
                each such object and the reason.
        """
        made = [arguments.instance("plan", plan, _core.RoutePlan) for plan in plans]
        state, problems = read(runtime, made)
        if problems:
            raise UnpicklableError(
                f"this runtime can't be sent to another process: {'; '.join(problems)}",
                problems=tuple(problems),
            )
        return cls(*state.values())

    def restore(self) -> Runtime:
        """Makes a runtime with this state, and makes it the default runtime of this process.

        The previous default runtime is dropped and its hooks are removed. If the default runtime already has
        this state, as in a forked child or at the second call, nothing happens. Call this before other
        threads use the default runtime.

        Returns:
            The runtime.

        Raises:
            InstallationError: This process's installation differs from the original's, or a plugin or an
                object that loaded in the original process can't be loaded in this one; the error lists every
                difference. The default runtime stays as it was.
        """
        return restore(self)

    def make_plans(self, runtime: Runtime) -> tuple[RoutePlan, ...]:
        """Makes, in this process, plans equal to those that `RuntimeState.of` was given.

        Args:
            runtime: The result of `restore`.

        Raises:
            InstallationError: A plan has other routes or backends here; the error lists the differences.
        """
        return make_plans(self, runtime)
