#!/usr/bin/env python3
"""python_smoke.py LIBRARY HEADER: generates through ctypes, from what the preprocessor makes of the header.

So the header stays one that other languages' tools can read: plain structs, plain prototypes, constants that are numbers.
"""

import ctypes as c
import os
import re
import subprocess
import sys

LIBRARY, HEADER = sys.argv[1:]


def preprocess(*options):
    command = [*os.environ.get("CC", "cc").split(), "-E", "-P", *options, HEADER]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


NUMBERS = {
    "int32_t": c.c_int32, "uint32_t": c.c_uint32, "int64_t": c.c_int64, "uint64_t": c.c_uint64,
    "size_t": c.c_size_t, "float": c.c_float, "double": c.c_double, "char": c.c_char, "void": None,
}


class Interface:
    """The header's types, constants and functions, as attributes."""

    def __init__(self):
        self.types = dict(NUMBERS)
        text = re.sub(r"\s+", " ", preprocess())
        declarations = r"typedef (?:struct )?(\w+) (bn_\w+);|typedef struct (bn_\w+) \{(.*?)\} \3;|typedef \w+ \(\*(bn_\w+)\)\("
        for alias, name, struct, body, callback in re.findall(declarations, text):
            if callback:
                self.types[callback] = c.c_void_p
            elif struct:
                self.types[struct] = self.structure(struct, body)
            else:  # a handle is struct and name alike
                self.types[name] = self.types.get(alias, c.c_void_p)
        library = c.CDLL(LIBRARY)
        # Of what is returned only names are text; in structs a NUL may come later or not at all.
        for result, name, parameters in re.findall(r"([\w ]+?\*?) ?\b(bn_\w+)\(([^()]*)\);", text):
            function = getattr(library, name)
            function.restype = c.c_char_p if "char" in result else self.type_of(result)
            function.argtypes = [self.type_of(p) for p in parameters.split(",") if p.strip() != "void"]
            setattr(self, name, function)
        for name, value in re.findall(r"#define (BN_\w+) \((.*)\)", preprocess("-dM")):
            number = re.fullmatch(r"(-?\d+)u?l*|1u << (\d+)", value)
            if number:
                setattr(self, name, int(number[1]) if number[1] else 1 << int(number[2]))

    def structure(self, name, body):
        fields = []
        for field in filter(None, map(str.strip, body.split(";"))):
            declared, field_name, _, length = re.fullmatch(r"(.*?)(\w+)(\[\(?(\d+)\)?\])?", field).groups()
            kind = self.type_of(declared)
            fields.append((field_name, kind * int(length) if length else kind))
        return type(name, (c.Structure,), {"_fields_": fields})

    def type_of(self, declared):
        """`const struct bn_x *name` and the like: every pointer is a void pointer here."""
        words = re.sub(r"\b(const|struct)\b", "", declared).split()
        return c.c_void_p if "*" in declared else self.types[words[0]]

    def new(self, name, init):
        value = self.types[name]()
        assert init(c.byref(value), c.sizeof(value)) == self.BN_OK, name
        return value


bn = Interface()
error = bn.new("bn_error", bn.bn_error_init)


def check(status):
    assert status >= bn.BN_OK, (bn.bn_status_name(status), error.message)


KEPT = []  # a bn_string does not own its bytes


def string(text):
    data = text.encode()
    KEPT.append(c.create_string_buffer(data))
    return bn.types["bn_string"](c.addressof(KEPT[-1]), len(data))


def text_of(value):
    return c.string_at(value.data, value.length).decode()


def main():
    assert bn.bn_abi_version() == bn.BN_ABI_VERSION and c.sizeof(error) == 512 and bn.BN_ANY == 2**64 - 1
    config = bn.new("bn_engine_config", bn.bn_engine_config_init)
    config.model_path = string("builtin:echo")
    engine = c.c_void_p()
    check(bn.bn_engine_create(c.byref(config), c.byref(engine), c.byref(error)))

    params = bn.new("bn_request_params", bn.bn_request_params_init)
    params.prompt = string("Grüße aus Python 🐍")
    params.user_data = 42
    completion = c.POINTER(bn.types["bn_event"])()
    check(bn.bn_generate(engine, c.byref(params), c.byref(completion), c.byref(error)))
    assert text_of(completion[0].text) == "Grüße aus Python 🐍"
    assert completion[0].finish_reason == bn.BN_FINISH_STOP and completion[0].user_data == 42
    bn.bn_completion_free(completion)

    request, event, count = c.c_uint64(), bn.types["bn_event"](), c.c_size_t()
    check(bn.bn_submit(engine, c.byref(params), c.byref(request), c.byref(error)))
    answer = ""
    while event.kind != bn.BN_EVENT_COMPLETED:
        check(bn.bn_poll(engine, bn.BN_ANY, c.byref(event), c.sizeof(event), 1, bn.BN_WAIT_FOREVER, c.byref(count),
                         c.byref(error)))
        answer += text_of(event.text)
        check(bn.bn_events_free(engine, c.byref(event), c.sizeof(event), count.value))
    check(bn.bn_release(engine, request, c.byref(error)))
    assert answer == "Grüße aus Python 🐍", answer

    params.priority = 256
    status = bn.bn_submit(engine, c.byref(params), c.byref(request), c.byref(error))
    assert status == bn.BN_ERR_INVALID_ARGUMENT and b"priority" in error.message, error.message
    check(bn.bn_engine_destroy(engine))


main()
