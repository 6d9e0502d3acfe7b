"""Configurations of backends: each has a dataclass or pydantic model as type, and is stored as JSON values.

pydantic is imported only if a backend has a configuration.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from switchrail.checks import shown
from switchrail.errors import ConfigError
from switchrail.nearest import nearest

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails


def read_defaults(config: object, where: str) -> tuple[type[Any] | None, dict[str, Any]]:
    """The type and the default values of a registration's `config`.

    Args:
        config: None; a dataclass or a pydantic model; or an instance of one, whose values are the defaults.
        where: The registration, for messages.

    Raises:
        ConfigError: `config` is none of these, its type can't be read, or a field has no valid default that
            JSON can represent.
    """
    if config is None:
        return None, {}
    config_type = config if isinstance(config, type) else type(config)
    from pydantic import BaseModel

    if not (dataclasses.is_dataclass(config_type) or issubclass(config_type, BaseModel)):
        raise ConfigError(
            f"{where}: config is {shown(config)}; valid: a dataclass or pydantic model, or an instance "
            "of one",
            found=config,
        )
    values = validate(config_type, {}, where) if config is config_type else config
    adapter = _adapter(config_type, where)
    dumped = to_json_values(adapter.dump_python(values, by_alias=True, warnings=False), where)
    validate(config_type, dumped, where)
    return config_type, dumped


def validate(config_type: type[Any], values: Mapping[str, Any], where: str) -> Any:
    """Makes an instance of the type from JSON values.

    Refuses unknown names, and values of a wrong type, such as "1" for an int.

    Raises:
        ConfigError: Values are invalid, or the type's own code fails. The message names each invalid field,
            its value, the valid fields and the nearest names.
    """
    from pydantic import ValidationError

    adapter = _adapter(config_type, where)
    try:
        return adapter.validate_json(json.dumps(values), strict=True, extra="forbid")
    except ValidationError as error:
        details = error.errors(include_url=False)
    except Exception as error:  # from __post_init__, a default_factory or a validator
        raise ConfigError(
            f"{where}: making a {config_type.__qualname__} of {shown(values)} raised {shown(error, None)}",
            problems=(shown(error, None),),
            found=values,
        ) from error
    valid = _names(config_type)
    unknown = [str(detail["loc"][0]) for detail in details if _is_unknown(detail) and len(detail["loc"]) == 1]
    near = [nearest(found, valid) for found in unknown]
    problems = tuple(_describe(detail) for detail in details)
    hints = "".join(hint for _, hint in near)
    raise ConfigError(
        f"{where}: {'; '.join(problems)}{hints}; valid fields: {', '.join(valid) or 'none'}",
        problems=problems,
        valid=valid,
        nearest=tuple(name for names, _ in near for name in names),
    )


def to_json_values(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Converts values to JSON: an enum to its value, a path to a string.

    Raises:
        ConfigError: A value has no JSON representation.
    """
    from pydantic_core import to_jsonable_python

    try:
        converted = to_jsonable_python(dict(values))
        json.dumps(converted, allow_nan=False, ensure_ascii=False).encode()  # refuses lone surrogates too
    except ValueError as error:
        raise ConfigError(
            f"{where}: {error}; valid: values that JSON can represent", found=dict(values)
        ) from error
    return dict(converted)


def _names(config_type: type[Any]) -> tuple[str, ...]:
    if dataclasses.is_dataclass(config_type):
        return tuple(field.name for field in dataclasses.fields(config_type) if field.init)
    return tuple(field.alias or name for name, field in config_type.model_fields.items())


def _adapter(config_type: type[Any], where: str) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        adapter = TypeAdapter(config_type)
        adapter.rebuild(raise_errors=True)  # reports unresolved names now, not at the first use
    except (PydanticUserError, NameError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"{where}: the type {config_type.__qualname__} can't be read: {reason}; "
            "valid: fields that JSON can represent",
            found=config_type,
        ) from error
    return adapter


def _is_unknown(detail: ErrorDetails) -> bool:
    return detail["type"] in ("extra_forbidden", "unexpected_keyword_argument")


def _describe(detail: ErrorDetails) -> str:
    field = ".".join(str(part) for part in detail["loc"])
    if _is_unknown(detail):
        return f"there is no field {field!r}"
    if detail["type"] == "missing":
        return f"the field {field!r} has no value"
    if not field:
        return f"the values {detail['input']!r} don't go together: {detail['msg']}"
    return f"{field} is {detail['input']!r}: {detail['msg']}"
