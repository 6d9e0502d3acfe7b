"""Backend configurations: a dataclass or pydantic model as the type, JSON values as the form that is kept.

pydantic is imported with the first backend that has a configuration.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from switchrail.errors import ConfigError
from switchrail.nearest import nearest

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails


def read_defaults(config: object, where: str) -> tuple[type[Any] | None, dict[str, Any]]:
    """The type and the default values of what a registration gives as `config`.

    Args:
        config: None, a dataclass or pydantic model type, or an instance of one with the defaults.
        where: What is registered, for messages.

    Raises:
        ConfigError: It is something else, or its fields don't all have a valid default that JSON can hold.
    """
    if config is None:
        return None, {}
    config_type = config if isinstance(config, type) else type(config)
    if not _is_config_type(config_type):
        raise ConfigError(
            f"{where}: config is {config!r}; valid: a dataclass or pydantic model, or an instance of one",
            found=config,
        )
    values = validate(config_type, {}, where) if config is config_type else config
    dumped = to_json_values(_adapter(config_type).dump_python(values, by_alias=True, warnings=False), where)
    validate(config_type, dumped, where)
    return config_type, dumped


def validate(config_type: type[Any], values: Mapping[str, Any], where: str) -> Any:
    """An object of the type from JSON values: nothing is converted, a name that it doesn't have is refused.

    Raises:
        ConfigError: With every problem: which field, what was found, what it should be, the nearest name.
    """
    from pydantic import ValidationError

    adapter = _adapter(config_type)
    try:
        return adapter.validate_json(json.dumps(values), strict=True, extra="forbid")
    except ValidationError as error:
        details = error.errors(include_url=False)
    valid = tuple(adapter.json_schema().get("properties", {}))
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
    """The values in the form that is kept: what JSON has, an enum by its value, a path as text.

    Raises:
        ConfigError: JSON has nothing for one of them.
    """
    from pydantic_core import to_jsonable_python

    try:
        json.dumps(converted := to_jsonable_python(dict(values)), allow_nan=False)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}; valid: what JSON can hold", found=dict(values)) from error
    return dict(converted)


def _is_config_type(config_type: type[Any]) -> bool:
    from pydantic import BaseModel

    return dataclasses.is_dataclass(config_type) or issubclass(config_type, BaseModel)


def _adapter(config_type: type[Any]) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(config_type)


def _is_unknown(detail: ErrorDetails) -> bool:
    return detail["type"] in ("extra_forbidden", "unexpected_keyword_argument")


def _describe(detail: ErrorDetails) -> str:
    field = ".".join(str(part) for part in detail["loc"])
    if _is_unknown(detail):
        return f"there is no field {field!r}"
    if detail["type"] == "missing":
        return f"the field {field!r} has no value"
    return f"{field} is {detail['input']!r}: {detail['msg']}"
