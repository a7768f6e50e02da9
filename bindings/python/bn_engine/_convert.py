"""Converts Python values to C structs, and C structs to named tuples, by the fields that the header declares."""

from __future__ import annotations

import json
import os
import reprlib
from array import array
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Callable, TypeVar

from . import _header as header
from ._library import Owned, ffi
from ._types import Pixels, Schema

T = TypeVar("T")
#: Options whose text is JSON.
JSON = ("chat_json", "json_schema")


def text(string: Any) -> str:
    return bytes(ffi.buffer(string.data, string.length)).decode()


def initializer(ctype: Any, value: Any, kept: list[Any]) -> Any:
    """The initializer of a field of this type; the data that it points to is added to `kept`."""
    if ctype.kind == "pointer":
        if isinstance(value, Owned):
            return value._handle
        if isinstance(value, str):
            raise TypeError(f"a sequence is needed, not the string {value!r}")
        if isinstance(value, Mapping):
            value = value.items()
        kept.append(ffi.new(f"{ctype.item.cname}[]", [initializer(ctype.item, item, kept) for item in value]))
        return kept[-1]
    if ctype.cname == "bn_picture":
        return _picture(value, kept)
    if ctype.cname == "bn_string":
        kept.append(ffi.from_buffer("char[]", os.fspath(value).encode()))
        return {"data": kept[-1], "length": len(kept[-1])}
    if ctype.kind == "struct" and not isinstance(value, tuple):
        return _fields(ctype, value, kept)
    return value


def _picture(value: Any, kept: list[Any]) -> dict[str, Any]:
    width = height = 0
    if isinstance(value, Pixels):
        width, height, value = value
    elif isinstance(value, (str, os.PathLike)):
        value = Path(value).read_bytes()
    kept.append(ffi.from_buffer("uint8_t[]", value))
    return {"data": kept[-1], "data_len": len(kept[-1]), "width": width, "height": height}


def picture(value: Any, kept: list[Any]) -> Any:
    return ffi.new("bn_picture *", _picture(value, kept))


def _fields(ctype: Any, value: Mapping[str, Any], kept: list[Any]) -> dict[str, Any]:
    """The initializers of a struct's fields. Those that its class does not require may be missing."""
    required: frozenset[str] = _class(ctype).__required_keys__
    unknown = value.keys() - dict(ctype.fields).keys()
    if unknown:
        raise KeyError(*unknown)
    made: dict[str, Any] = {}
    for name, field in ctype.fields:
        counted = made.get(name.removesuffix("_count")) if name.endswith("_count") else None
        if counted is not None:
            made[name] = len(counted)
        elif name in value or name in required:
            made[name] = initializer(field.type, value[name], kept)
    return made


def _class(ctype: Any) -> Any:
    return getattr(header, "".join(part.capitalize() for part in ctype.cname.removeprefix("bn_").split("_")))


def string(value: str | os.PathLike[str], kept: list[Any]) -> Any:
    return ffi.new("bn_string *", initializer(ffi.typeof("bn_string"), value, kept))[0]


def json_text(value: Schema) -> str:
    """JSON: a text unchanged, a mapping as a JSON object, or the schema of a class."""
    if isinstance(value, str):
        return value
    return json.dumps(value if isinstance(value, Mapping) else value.model_json_schema())


def fill(struct: Any, options: Mapping[str, Any], kind: type) -> list[Any]:
    """Sets the options that are not None. Keep the result as long as the struct."""
    kept: list[Any] = []
    for name, value in options.items():
        if name not in kind.__annotations__:
            raise TypeError(f"there is no option {name!r}")
        if value is None:
            continue
        try:
            _set(struct, name, json_text(value) if name in JSON else value, kept)
        except (AttributeError, KeyError, OverflowError, TypeError) as error:
            raise TypeError(f"{name} cannot be {reprlib.repr(value)}: {error}") from None
    return kept


def _set(struct: Any, name: str, value: Any, kept: list[Any]) -> None:
    """Sets a field, or a constraint by its kind; any other name is a flag."""
    owner, field, fields = struct, name, dict(ffi.typeof(struct).item.fields)
    if name in header.PATHS:
        outer, field = header.PATHS[name]
        owner, fields = getattr(struct, outer), dict(fields[outer].type.fields)
    if field in fields:
        made = initializer(fields[field].type, value, kept)
        setattr(owner, field, made)
        if f"{field}_count" in fields:
            setattr(owner, f"{field}_count", len(made))
    elif name in header.ConstraintOptions.__annotations__:
        if value is False:
            return
        if struct.constraint.kind:
            raise TypeError("there is another constraint")
        struct.constraint.kind = getattr(header, f"CONSTRAINT_{name.upper()}")
        if value is not True:
            struct.constraint.text = string(value, kept)
    elif value:
        family = "MODEL" if name in header.ModelOptions.__annotations__ else "REQUEST"
        struct.flags |= getattr(header, f"{family}_{name.upper()}")


def reader(struct: str, kind: Callable[..., T]) -> Callable[[Any], T]:
    """A function that copies a struct of this type to a named tuple."""
    fields = dict(ffi.typeof(struct).fields)
    getters = [_field(name, fields[name].type) for name in kind._fields]  # type: ignore[attr-defined]
    return lambda value: kind(*[get(value) for get in getters])


def _field(name: str, ctype: Any) -> Callable[[Any], Any]:
    get = attrgetter(name)
    if ctype.kind == "pointer":
        count, items = attrgetter(f"{name}_count"), _items(ctype.item)
        return lambda value: items(get(value), count(value))
    if ctype.kind == "array":
        return lambda value: list(get(value))
    if ctype.kind == "struct":
        inner = _struct(ctype)
        return lambda value: inner(get(value))
    return get


def _items(ctype: Any) -> Callable[[Any, int], Any]:
    if ctype.cname == "float":
        return lambda data, count: array("f", bytes(ffi.buffer(data, count * 4)) if count else b"")
    if ctype.kind == "struct":
        inner = _struct(ctype)
        return lambda data, count: [inner(data[i]) for i in range(count)]
    return lambda data, count: ffi.unpack(data, count) if count else []


def _struct(ctype: Any) -> Callable[[Any], Any]:
    if ctype.cname == "bn_string":
        return text
    return reader(ctype.cname, _class(ctype))
