"""Writes tests/golden/schemas.json: schemas of this script, texts, and whether they are valid.

The judge is `jsonschema` with its checks of formats, which shares no code with this library:

    pip install "jsonschema[format]==4.26.0"
    python schemas.py

A text is spelled as `json.dumps` does, with keys in the schema's order: where it is valid, a constraint must accept it.
One that is marked `other` is spelled otherwise: it may be refused, but not accepted where it is invalid. Keys that come
twice are JSON, and Python takes the last; what `valid` says is of that.
"""

import importlib.metadata
import json
import pathlib

from jsonschema.validators import Draft202012Validator, validator_for

OTHER = "other"


def other(text):
    """A text other than json.dumps writes."""
    return (OTHER, text)


def enum(*values):
    return {"enum": list(values)}


OPEN = {"type": "object", "properties": {"a": {"type": "boolean"}}}
PEOPLE = [{"name": "x"}, {"name": "x", "age": 3}, {"age": 3}, {}, {"name": "x", "zip": 1}, 5, None, "name"]
BASIC = [None, True, False, 0, 1, -1, 1.5, "", "a", "abc", [], [1], ["a", "b"], {}, {"a": 1}, {"b": 2}, {"a": 1, "b": 2}]
TIMES = [
    "1998-12-31T23:59:60Z", "1998-12-31T23:58:60Z", "1998-12-31T22:59:60Z", "1998-11-29T23:59:60Z", "1998-12-31T23:59:61Z",
    "2021-02-29T00:00:00Z", "2020-02-29T00:00:00Z", "1900-02-29T00:00:00Z", "2000-02-29T00:00:00+01:30", "2020-04-31T00:00:00Z",
    "2020-01-01T24:00:00Z", "2020-01-01t00:00:00z", "2020-01-01T00:00:00", "2020-01-01 00:00:00Z", "2020-01-01T00:00:00.123456-23:59",
    "2020-01-01T00:00:00+24:00",
]
DATES = ["2021-02-29", "2020-02-29", "2100-02-29", "2000-02-29", "0100-02-29", "0400-02-29", "2020-12-31", "2020-13-01", "2020-00-10",
         "2020-06-31", "20200101", "0000-01-01", "2020-1-1", "2020-01-01\n"]
HOSTS = ["example.com", "a", "a-b.c", "-a.com", "a-.com", "xn--X", "ab--cd.com", "a--b", "abc-", "a" * 63, "a" * 64, "a..b", "", ".",
         "a_b", ".".join(["a" * 61] * 5), "1.2.3.4", "aa-b", "aaa-b", "a-a-a-a"]

# Schemas with values and texts, and part of the error if the schema is refused; none if it must be supported.
CASES = [
    # -- keys and escapes
    (OPEN, [{"a": True}, {"a": 1}, {"b": 1}, {"aa": "x"}, {}, {"é": 1}, {"\n": 1}, {'"': 1, "\\": 2}, other('{"\\u0061": "x"}'),
            other('{"\\u0061": true}'), other('{"a": true, "a": "x"}'), other('{"b": 1, "b": 2}'), other('{"\\u0041": 1}')], None),
    ({**OPEN, "additionalProperties": {"type": "integer"}},
     [{"a": True, "b": 1}, {"b": "x"}, other('{"\\u0061": 1}'), other('{"b": 1, "\\u0061": 1}'), other('{"\\/": 1}')], None),
    ({"properties": {"\n": {"type": "null"}}}, [{"\n": None}, {"\n": 1}, other('{"\\u000a": 1}'), other('{"\\u000A": 1}'), "x"], None),
    ({"properties": {"\x01": {"type": "null"}}}, [{"\x01": None}, {"\x01": 1}], None),
    ({"type": "object", "patternProperties": {"^[a-c]$": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
     [{"a": None}, {"d": 1}, {"a": 1}, other('{"\\u0061": 1}'), {"b": None, "zz": 3}], None),
    ({"type": "object", "required": ["a"]}, [{"a": 1}, {}, {"a": 1, "b": 2}, {"b": 2}, other('{"\\u0061": 1}')], None),
    ({"const": "a/b"}, ["a/b", other('"a\\/b"'), other('"\\u0061/b"')], None),
    ({"type": "string", "pattern": "^a{2}$"}, ["aa", "a", other('"\\u0061a"')], None),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["é", "éé", "\n\n", "\x01\x02", "😀😀", "😀", "abcd", other('"\\u00e9"')], None),
    ({"const": "\x1b["}, ["\x1b["], None),
    # -- numbers
    ({"const": 9007199254740992}, [9007199254740992, 9007199254740993, 9007199254740991], None),
    ({"const": 9007199254740993}, [], "no f64"),
    ({"enum": [1, 18446744073709551615]}, [], "no f64"),
    ({"minimum": 9007199254740993}, [], "no f64"),
    ({"type": "integer", "minimum": -3, "exclusiveMaximum": 4}, [-4, -3, 0, 3, 4], None),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "number", "minimum": 1, "exclusiveMinimum": True}, [1, 1.5, 0, 2], None),
    ({"type": "number", "multipleOf": 0.5}, [0.5, 1, 1.25, -2.5], None),
    ({"type": "integer", "multipleOf": 3}, [3, 4, 0, -6, -5], None),
    ({"maxLength": 2.0}, ["ab", "abc", 5], None),
    # -- not
    ({"not": {"type": ["string", "object"]}}, BASIC, None),
    ({"not": enum("a", "abc", 1, None, True)}, BASIC + ["ab", "abcd", "b", "\n", 2, "é"], None),
    ({"type": "string", "not": {"const": ""}}, ["", "a", "ab"], None),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a", "b"]}}, BASIC, None),
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "not": {"properties": {"a": {"minimum": 3}}}},
     [{"a": 2}, {"a": 3}, {}, {"b": 1}], None),
    ({"enum": [1, 2, "x", "y"], "not": {"type": "integer", "minimum": 2}}, [1, 2, "x", "y", "z"], None),
    ({"not": {"anyOf": [{"type": "integer"}, {"type": "number"}]}}, BASIC, "turned around"),
    ({"not": {"pattern": "^a"}}, [], "turned around"),
    ({"not": {"not": {"type": "integer"}}}, BASIC, None),
    ({"not": {"minLength": 2}}, BASIC, None),
    ({"not": {"enum": [[], {}]}}, BASIC, None),
    ({"not": {}}, [1, None], "Unsatisfiable"),
    # -- oneOf
    ({"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}, BASIC, None),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 1.5, 2, 2.5, 3, "x"], "exclude"),
    ({"oneOf": [{"const": 1}, {"enum": [2, 3]}, {"const": "a"}]}, BASIC + [2, 3], None),
    ({"oneOf": [{"type": "object", "properties": {"k": {"const": k}, v: {"type": t}}, "required": ["k", v]}
                for k, v, t in [("i", "n", "integer"), ("s", "t", "string")]]},
     [{"k": "i", "n": 1}, {"k": "i", "n": "x"}, {"k": "s", "t": "x"}, {"k": "s", "t": 1}, {"k": "z"}, {"k": "i"}, {"n": 1, "t": "x"}], None),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
      "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, BASIC, None),
    ({"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, BASIC, None),
    ({"oneOf": [{"type": "number", "multipleOf": 5}, {"type": "number", "multipleOf": 3}]}, [3, 5, 15], "exclude"),
    ({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": {"type": "array", "maxItems": 1}, "b": {"type": "array", "minItems": 2}}},
     BASIC, None),
    ({"oneOf": [{"type": "number", "maximum": 1}, {"type": "number", "minimum": 1}]}, [0, 1, 2, "x"], None),
    ({"oneOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
                {"type": "object", "required": ["b"]}]}, [{}, {"a": 1}, {"b": 2}, {"b": 2, "a": 1}, {"a": "x"}, {"c": 1}, 1], None),
    ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 1}]}, BASIC, None),
    ({"oneOf": [True, True]}, [1], "Unsatisfiable"),
    # -- if
    ({"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]}, "else": {"maxProperties": 1}}, BASIC, None),
    ({"if": {"type": "string"}, "then": {"minLength": 2}}, BASIC, None),
    ({"if": {"pattern": "^a"}, "then": {"minLength": 2}}, [], "turned around"),
    # -- dependencies
    ({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"name": {}, "age": {}}, "dependencies": {"age": ["name"]}}, PEOPLE, None),
    ({"type": "object", "properties": {"name": {}, "age": {}}, "dependentRequired": {"age": ["name"], "zip": ["name", "age"]}}, PEOPLE, None),
    ({"type": "object", "properties": {"name": {}, "age": {}}, "dependentSchemas": {"age": {"required": ["name"], "properties": {"age": {"maximum": 2}}}}},
     PEOPLE + [{"name": "x", "age": 1}], None),
    ({"dependentRequired": {str(n): ["x"] for n in range(7)}}, [], "depend on them"),
    # -- uniqueItems
    ({"type": "array", "items": enum("a", "b", "c"), "uniqueItems": True}, [[], ["a"], ["a", "a"], ["b", "a"], ["a", "b", "c"], ["c", "a", "c"], ["d"]], None),
    ({"type": "array", "items": enum("a", "b", 1, 1.0), "uniqueItems": True, "minItems": 2, "maxItems": 2}, [["a", "b"], ["a"], ["a", "a"], [1, "b"], ["a", "b", 1]], None),
    ({"items": {"type": "boolean"}, "uniqueItems": True}, [[True, False], [True, True], [], "x", [False]], None),
    ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, [], "uniqueItems"),
    ({"type": "array", "items": {"type": "string"}, "uniqueItems": True, "maxItems": 1}, [[], ["a"], ["a", "b"]], None),
    ({"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "uniqueItems": True}, [["a", 1], ["a", "a"], ["a"], []], None),
    # -- objects
    ({"minProperties": 2}, [], "minProperties"),
    ({"type": "object", "minProperties": 1}, [{}, {"a": 1}, {"a": 1, "b": 2}, other('{"a": 1, "a": 2}')], None),
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "minProperties": 1}, BASIC, None),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]$"}}, BASIC + [{"A": 1}, {"ab": 1}], None),
    ({"propertyNames": enum("a", "b")}, BASIC + [{"c": 1}], None),
    ({"propertyNames": {"maxLength": 1}, "properties": {"a": {"type": "integer"}}}, BASIC + [{"ab": 1}, {"a": "x"}], None),
    ({"properties": {"a": {"type": "integer"}}, "unevaluatedProperties": False}, BASIC, None),
    ({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}, [], "unevaluatedProperties"),
    ({"patternProperties": {"^b": {"type": "integer"}}, "anyOf": [{"required": ["b"]}, {"type": "string"}], "additionalProperties": False},
     BASIC + [{"b": "x"}], None),
    ({"contains": {"type": "string"}}, [], "contains"),
    ({"contains": True, "minContains": 2}, [[1], [1, 2], [], 5], None),
    # -- data that look like schemas
    ({"const": {"$ref": "#/nowhere", "not": 5}}, [{"$ref": "#/nowhere", "not": 5}, {}], None),
    ({"properties": {"oneOf": {"type": "integer"}, "$ref": {"type": "string"}, "const": {"type": "null"}}},
     [{"oneOf": 1, "$ref": "x", "const": None}, {"oneOf": "x"}, {"const": 1}], None),
    ({"enum": [{"oneOf": [1]}, {"format": "x"}]}, [{"oneOf": [1]}, {"format": "x"}, {}], None),
    # -- references
    ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "integer"}, "a~1b%25": {"type": "string"}}}, [1, "x"], None),
    ({"$ref": "#x", "$defs": {"y": {"$anchor": "x", "type": "integer"}}}, [1, "x"], None),
    ({"properties": {"a": {"$id": "http://x.org/a", "$ref": "#/$defs/t", "$defs": {"t": {"type": "integer"}}}}, "$defs": {"t": {"type": "string"}}},
     [{"a": 1}, {"a": "x"}], None),
    ({"type": "object", "properties": {"next": {"$ref": "#"}, "v": {"type": "integer"}}, "required": ["v"], "additionalProperties": False},
     [{"v": 1}, {"next": {"v": 2}, "v": 1}, {"next": {}, "v": 1}], None),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a", "type": "string", "definitions": {"a": {"type": "integer"}}}, [1, "x"], None),
    ({"$ref": "http://x.org/other"}, [], "leads to nothing"),
    # -- patterns
    ({"type": "string", "pattern": "^[a-c&&b]$"}, ["a", "b", "c", "&", "d"], None),
    ({"type": "string", "pattern": "^[[a]$"}, ["[", "a", "b"], None),
    ({"type": "string", "pattern": "^[+--]$"}, ["+", ",", "-", ".", "*"], None),
    ({"type": "string", "pattern": "^[\\w.-]+$"}, ["a.b-c", "a b", "_"], None),
    ({"type": "string", "pattern": "^a.c$"}, ["abc", "a\nc", "ac"], None),
    ({"type": "string", "pattern": "^\\d{2}\\s\\S$"}, ["12 x", "1 x", "12  "], None),
    ({"type": "string", "pattern": "b"}, ["abc", "ac", "b"], None),
    ({"type": "string", "pattern": "^(a|b)$|^c"}, ["a", "ab", "cd", "b"], None),
    ({"type": "string", "pattern": "^[^\"]*$"}, ["a", 'a"', "\\", "\n", ""], None),
    ({"type": "string", "pattern": "^[^\\\\\n]+$"}, ["a", "a\\", '"', "\n", "\t"], None),
    ({"type": "string", "pattern": "^[\\x00-!]$"}, [" ", "!", '"', "\\", "\t"], None),
    ({"type": "string", "not": {"const": '"'}}, ["", '"', "\\", '""', "a"], None),
    ({"type": "string", "pattern": "^(?!a)"}, [], "looks around"),
    ({"type": "string", "pattern": "\\ba"}, [], "word boundary"),
    # -- formats
    ({"format": "date"}, DATES + [5], None),
    ({"format": "date-time"}, TIMES, None),
    ({"format": "time"}, ["23:59:60Z", "22:59:60Z", "23:59:60+01:00", "00:00:00Z", "12:00:00", "12:00:00.5-01:00", "24:00:00Z", "12:60:00Z"], None),
    ({"format": "hostname"}, HOSTS, None),
    ({"format": "ipv4"}, ["1.2.3.4", "256.1.1.1", "1.2.3", "01.2.3.4"], None),
    ({"format": "ipv6"}, ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7", "1::2::3", "::ffff:1.2.3.4", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7:1.2.3.4",
                          "12345::", "1:2:3:4:5:6:7::", "1:2:3:4:5:6:7::8", "::1.2.3", "1::2:3:4:5:6:7"], None),
    ({"format": "email"}, ["a@b.c", "a", "a.b@c"], None),
    ({"format": "uuid"}, ["2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08aa9811eab4aa73b441d16380"], None),
    ({"format": "duration"}, ["P1Y", "PT1S", "P1W", "P", "PT", "P1D2H", "P1YT1M", "1Y"], None),
    ({"format": "json-pointer"}, ["", "/a", "/a~0b/~1", "/~2", "a", "/"], None),
    ({"format": "relative-json-pointer"}, ["0", "1/a", "0#", "01", "/a", "2#/"], None),
    ({"format": "uri"}, ["http://a.b/c?d#e", "a:b", "//a", "http://[::1]:80/", "a b", "http://a b", "urn:x:y", "http://[1::2::3]/", "1a:b"], None),
    ({"format": "uri-reference"}, ["a", "//a/b", "#x", "?q", "a b", "http://a", "", "1:b"], None),
    ({"format": "of no name"}, ["x", "", 1], None),
    ({"type": "integer", "format": "int32"}, [1, "x"], None),
    ({"type": "string", "minLength": 6, "format": "date", "pattern": "^2"}, ["2020-01-01", "1999-01-01", "2"], None),
]


def spelled(case):
    if isinstance(case, tuple) and case[0] == OTHER:
        return {"text": case[1], "other": True}
    return {"text": json.dumps(case, ensure_ascii=False)}


def judged(schema, cases):
    kind = validator_for(schema, default=Draft202012Validator)
    judge = kind(schema, format_checker=kind.FORMAT_CHECKER)
    texts = [spelled(case) for case in cases]
    for text in texts:
        text["valid"] = judge.is_valid(json.loads(text["text"]))
    return texts


def main():
    golden = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/schemas.json"
    cases = []
    for schema, texts, refused in CASES:
        case = {"schema": schema, "texts": judged(schema, texts) if refused is None else []}
        cases.append(case if refused is None else {**case, "refused": refused})
    judge = f"jsonschema {importlib.metadata.version('jsonschema')}"
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    golden.write_text(f'{{"judge": "{judge}", "cases": [\n{lines}\n]}}\n')
    print(len(cases), "schemas,", sum(len(case["texts"]) for case in cases), "texts")


main()
