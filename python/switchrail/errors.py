"""The exceptions of Switchrail. Each is also a subclass of a fitting built-in exception."""

from __future__ import annotations

from typing import Any

from switchrail.foreign import in_lines


class SwitchrailError(Exception):
    """Base class of all errors of this library.

    The message names the problem, the value found and the valid values. It is safe for a terminal: control
    characters other than line ends and tabs are escaped, and text longer than `switchrail.foreign.LINES` is
    cut. The constructor's keyword arguments are kept unchanged as attributes of the error, and in `fields`.
    Pickling keeps them. The class's docstring lists the usual fields; an error has those that apply to it.

    Attributes:
        message: The error's text.
        fields: The constructor's keyword arguments, by name.
        valid: The valid values, if they can be listed.
        nearest: The valid names nearest to the unknown name, best first.
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

    def extend(self, hint: str) -> None:
        """Appends a hint to the message."""
        self.message = in_lines(f"{self.message}; {hint}")
        self.args = (self.message,)


class UnknownOpError(SwitchrailError, ValueError):
    """The name of an op is unknown. Fields: `found`, `valid`, `nearest`."""


class UnknownPhaseError(SwitchrailError, ValueError):
    """The name of a phase is unknown, or no phase was given. Fields: `found`, `valid`, `nearest`."""


class UnknownDtypeError(SwitchrailError, ValueError):
    """The name of a dtype is unknown. Fields: `found`, `valid`, `nearest`."""


class UnknownDeviceError(SwitchrailError, ValueError):
    """The name of a device kind is unknown. Fields: `found`, `valid`, `nearest`."""


class PreferenceError(SwitchrailError, ValueError):
    """A preference is invalid, without effect, or missing. Fields: `found`, `valid`, `nearest`."""


class RegistrationError(SwitchrailError, ValueError):
    """A registration is invalid or refused. Fields: `op`, `name`, `field`, `problem`, `found`."""


class ArgumentError(SwitchrailError, TypeError):
    """An argument's name is unknown, or its value is invalid. Fields: `argument`, `found`."""


class NameTakenError(RegistrationError):
    """The name is registered already and `override=True` was not given. Fields: `op`, `found`, `owner`."""


class ConflictError(RegistrationError):
    """Another transaction committed a conflicting change first. Fields: `op`, `found`, `owner`."""


class TransactionClosedError(SwitchrailError, RuntimeError):
    """A change was refused because its transaction has ended."""


class UnknownBackendError(SwitchrailError, LookupError):
    """The op has no backend of that name. Fields: `op` or `key`, `found`, `valid`, `nearest`."""


class BackendUnfitError(SwitchrailError, ValueError):
    """The chosen backend can't serve the query. Fields: `found`, `query`, `chosen`, `rejected`."""

    @property
    def because(self) -> str:
        """Why the chosen backend can't serve the query, as text for messages."""
        return self.message.partition("\n")[0].partition(": ")[2]


class NoBackendError(SwitchrailError, LookupError):
    """No backend can serve the query, or no op covers a layer of the model.

    Fields: `query` and `rejected`, in a plan also `layers`, `op` and `phase`; or `model`, `layer`, `found`.
    """


class BackendImportError(SwitchrailError, ImportError):
    """A backend, function or model family can't be imported, or a class can't serve as the backend.

    Fields for a backend: `backend`, `op`, `path`; `missing`, the part of the path that does not exist, or
    None; and, if the backend was to be constructed, `problem`, the message without suggestions. Fields for a
    function or family: `name`, `path`.
    """


class ConfigError(SwitchrailError, ValueError):
    """A configuration, its file or an options object is invalid. Fields: `problems`, `valid`."""


class LayoutError(SwitchrailError, ValueError):
    """The layers can't be read from a model's configuration. Fields: `model_type`, `key`, `found`."""


class UnknownModelError(LayoutError):
    """The `model_type` is unknown or missing. Fields: `found`, `valid`, `nearest`."""


class UnknownLayerError(SwitchrailError, LookupError):
    """The layer id is outside the layout. Fields: `found`, `model`, `layers`."""


class LayerTypeError(SwitchrailError, TypeError):
    """No layer was given, or the layer id is not an int. Fields: `found`, `model`, `layers`."""


class NoRouteError(SwitchrailError, LookupError):
    """The layer doesn't run that op, or the phase wasn't planned. Fields: `model`, `found`, `valid`."""


class StalePlanError(SwitchrailError, LookupError):
    """A plan's backend is not registered, or has changed. Fields: `op`, `backend`, `origin`, `found`."""


class SchemaError(SwitchrailError, ValueError):
    """A JSON document is invalid, or its schema version is not supported. Fields: `found`, `valid`."""


class OrderError(SwitchrailError, ValueError):
    """Order constraints form a cycle. Fields: `members`."""


class HookError(SwitchrailError, ValueError):
    """A hook can't be put on its target, or can't be changed now. Fields: `target`, `valid`, `nearest`."""


class PluginError(SwitchrailError, ImportError):
    """Plugins failed to load, in strict mode. Fields: `plugins`."""


class EntryPointError(SwitchrailError, ImportError):
    """An entry point does not lead to a loadable function. Fields: `target`, `nearest`."""


class UnknownPluginError(SwitchrailError, LookupError):
    """A requested plugin is not installed. Fields: `found`, `valid`, `nearest`."""


class LockError(SwitchrailError, ValueError):
    """A lock can't be read, written or applied.

    Fields: `path` and `problem`; or `difference` if Switchrail itself differs from the lock.
    """


class LoadReentryError(SwitchrailError, RuntimeError):
    """A plugin called `discover` or `load` while it was being loaded."""


class UnpicklableError(SwitchrailError, TypeError):
    """A runtime has objects that other processes can't find by name. Fields: `problems`."""


class InstallationError(SwitchrailError, RuntimeError):
    """This process can't restore another process's runtime. Fields: `differences`."""


class MissingPackageError(SwitchrailError, ImportError):
    """torch or transformers is needed and not installed. Fields: `found`."""


class RankError(SwitchrailError, RuntimeError):
    """Ranks of a distributed job differ or did not respond. Fields: `ranks` (rank -> problem)."""


class PlatformError(SwitchrailError, RuntimeError):
    """A device or platform does not exist, can't be used, or is ambiguous. Fields: `found`, `valid`."""


class PlatformPluginError(PlatformError):
    """A platform plugin failed. Fields: `plugin`, `traceback`."""


class PlatformReentryError(PlatformError):
    """A platform plugin used the platform or the plugins while the platform was being chosen."""


class NotProvidedError(SwitchrailError, NotImplementedError):
    """A platform does not implement a method. Fields: `platform`, `method`."""


class CapabilityError(SwitchrailError, ValueError):
    """A compute capability can't be written as one integer. Fields: `found`, `valid`."""


class NewPluginError(SwitchrailError, ValueError):
    """A new plugin can't have this name or folder. Fields: `found`."""


class CheckpointError(SwitchrailError, ValueError):
    """A checkpoint can't be found, read or run. Fields: `path`, `found`, `valid`."""


class RequestError(SwitchrailError, ValueError):
    """The engine can't serve a request. Fields: `problems`, `valid`; or the requested values and limits."""


class EngineError(SwitchrailError, RuntimeError):
    """The engine is closed, in a step, or in another process; or proposed drafts are invalid.

    Fields: none, or `process`, `found`.
    """


class DispatchError(SwitchrailError, RuntimeError):
    """A call can't be dispatched, or an op didn't run once in a step. Fields: `layer`, `op`, `found`."""


class BridgeError(SwitchrailError, ValueError):
    """A bridge can't serve a model, a cache or a call of another library. Fields: `found`, `valid`."""


class TimesError(SwitchrailError, ValueError):
    """The file of measured times can't be read or written. Fields: `path`, `problem`."""


class NoCaseError(SwitchrailError, LookupError):
    """No case of the conformance suite matches. Fields: `found`."""


class ContractError(SwitchrailError, ValueError):
    """An argument breaks its op's contract. Fields: `op`, `argument`, `found`, `valid`."""
