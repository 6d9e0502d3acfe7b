"""Every exception that Switchrail raises; each is also a subclass of the built-in that fits it."""

from __future__ import annotations

from typing import Any

from switchrail.foreign import in_lines


class SwitchrailError(Exception):
    """Base of all errors of this library.

    The message says what was wrong, what was found and what would be valid, fit for a terminal: control
    characters are escaped, and what is longer than `switchrail.foreign.LINES` is cut. The same facts, as they
    are, are attributes, one for each keyword that was given, and together in `fields`. Pickling keeps them.

    Attributes:
        message: The text for people.
        fields: The facts by name.
        valid: What would have been accepted, where that can be listed.
        nearest: The valid names nearest to the one found, best first.
    """

    message: str = ""
    fields: dict[str, Any]
    valid: tuple[Any, ...] = ()
    nearest: tuple[str, ...] = ()

    def __init__(self, message: str = "", **fields: Any) -> None:
        self.message = in_lines(message)
        super().__init__(self.message)
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)


class UnknownOpError(SwitchrailError, ValueError):
    """A name that is no op. Fields: `found`, `valid`, `nearest`."""


class UnknownPhaseError(SwitchrailError, ValueError):
    """A name that is no phase, or no phase at all. Fields: `found`, `valid`, `nearest`."""


class UnknownDtypeError(SwitchrailError, ValueError):
    """A name that is no dtype. Fields: `found`, `valid`, `nearest`."""


class UnknownDeviceError(SwitchrailError, ValueError):
    """A name that is no kind of device. Fields: `found`, `valid`, `nearest`."""


class PreferenceError(SwitchrailError, ValueError):
    """A choice of backend under a key that means nothing. Fields: `found`, `valid`, `nearest`."""


class RegistrationError(SwitchrailError, ValueError):
    """A backend, or a plugin's function, that can't be meant. Fields: `op`, `name`, `field`, `problem`."""


class ArgumentError(SwitchrailError, TypeError):
    """A value of a type that the argument doesn't take, or no such argument. Fields: `argument`, `found`."""


class NameTakenError(RegistrationError):
    """The name is registered already and `override=True` was not given. Fields: `op`, `found`, `owner`."""


class ConflictError(RegistrationError):
    """Another transaction committed first what this one counted on. Fields: `op`, `found`, `owner`."""


class TransactionClosedError(SwitchrailError, RuntimeError):
    """A write to a transaction that has ended."""


class UnknownBackendError(SwitchrailError, LookupError):
    """No backend of that name for the op. Fields: `op` or `key`, `found`, `valid`, `nearest`."""


class BackendUnfitError(SwitchrailError, ValueError):
    """The chosen backend can't serve the query. Fields: `found`, `query`, `chosen`, `rejected`."""

    @property
    def because(self) -> str:
        """Why it can't, in words."""
        return self.message.partition("\n")[0].partition(": ")[2]


class NoBackendError(SwitchrailError, LookupError):
    """No backend can serve the query. Fields: `query` and `rejected`; in a plan `layers`, `op`, `phase`."""


class BackendImportError(SwitchrailError, ImportError):
    """The chosen backend's path doesn't lead to a backend for its op.

    Fields: `backend`, `op`, `path`; `missing`, the part of the path that does not exist, or None; when it was
    to be constructed, `problem`, the message without the ways out.
    """


class ConfigError(SwitchrailError, ValueError):
    """Values that a configuration or options object doesn't take. Fields: `problems`, `valid`."""


class LayoutError(SwitchrailError, ValueError):
    """A model configuration from which the layers can't be read. Fields: `model_type`, `key`, `found`."""


class UnknownModelError(LayoutError):
    """A `model_type` that has no layout. Fields: `found`, `valid`, `nearest`."""


class UnknownLayerError(SwitchrailError, LookupError):
    """A layer id outside the layout. Fields: `found`, `model`, `layers`."""


class LayerTypeError(SwitchrailError, TypeError):
    """No layer was given, or something that is no layer id. Fields: `found`, `model`, `layers`."""


class NoRouteError(SwitchrailError, LookupError):
    """The layer doesn't run that op, or the phase wasn't planned. Fields: `model`, `found`, `valid`."""


class StalePlanError(SwitchrailError, LookupError):
    """A plan names a backend that is not registered as it was. Fields: `op`, `backend`, `origin`, `found`."""


class SchemaError(SwitchrailError, ValueError):
    """A document that can't be read, or has another schema version. Fields: `found`, `valid`."""


class OrderError(SwitchrailError, ValueError):
    """Order constraints that form a cycle. Fields: `members`."""


class HookError(SwitchrailError, ValueError):
    """A hook that can't work on its target. Fields: `target`, `valid`, `nearest`."""


class PluginError(SwitchrailError, ImportError):
    """Plugins that failed to load, in strict mode. Fields: `plugins`."""


class EntryPointError(SwitchrailError, ImportError):
    """An entry point that leads to nothing that can be loaded. Fields: `target`, `nearest`."""


class UnknownPluginError(SwitchrailError, LookupError):
    """A plugin was asked for that is not installed. Fields: `found`, `valid`, `nearest`."""


class LockError(SwitchrailError, ValueError):
    """A lock that can't be read, written or held to.

    Fields: `path` and `problem`; `difference` where Switchrail itself is not what was locked.
    """


class LoadReentryError(SwitchrailError, RuntimeError):
    """A plugin had the runtime look for plugins, or load them, while it was being loaded itself."""


class UnpicklableError(SwitchrailError, TypeError):
    """A runtime with something in it that can't be found by name elsewhere. Fields: `problems`."""


class InstallationError(SwitchrailError, RuntimeError):
    """A process that can't be made like the one that it is for. Fields: `differences`."""


class RankError(SwitchrailError, RuntimeError):
    """Ranks of a distributed job that differ, or did not come. Fields: `ranks`, what is wrong by rank."""


class PlatformError(SwitchrailError, RuntimeError):
    """A device or platform that is not there, or several where one is needed. Fields: `found`, `valid`."""


class PlatformPluginError(PlatformError):
    """A platform plugin that failed. Fields: `plugin`, `traceback`."""


class PlatformReentryError(PlatformError):
    """A platform plugin asked for the platform or for plugins while it was asked itself."""


class NotProvidedError(SwitchrailError, NotImplementedError):
    """A platform does not provide a method. Fields: `platform`, `method`."""


class CapabilityError(SwitchrailError, ValueError):
    """A compute capability that can't be written as one number. Fields: `found`, `valid`."""


class NewPluginError(SwitchrailError, ValueError):
    """A plugin that can't be written under that name, or there. Fields: `found`."""


class CheckpointError(SwitchrailError, ValueError):
    """A checkpoint folder that can't be read. Fields: `path`."""


class RequestError(SwitchrailError, ValueError):
    """A request that the engine can't serve, now or ever. Fields: what was asked for and what is possible."""


class EngineError(SwitchrailError, RuntimeError):
    """An engine that is closed, in a step, or of another process. Fields: `process`, `found`, or none."""


class DispatchError(SwitchrailError, RuntimeError):
    """A layer's op ran another number of times in a step than once. Fields: `layer`, `op`, `found`."""


class TimesError(SwitchrailError, ValueError):
    """Measured times that can't be read or written. Fields: `path`, `problem`."""


class NoCaseError(SwitchrailError, LookupError):
    """The conformance suite has nothing to run. Fields: `found`."""


class ContractError(SwitchrailError, ValueError):
    """An argument that breaks its op's contract. Fields: `op`, `argument`, `found`, `valid`."""
