#!/usr/bin/env python3
"""Writes corpus/schema/: schemas, each followed by a zero byte and bytes that choose a reply."""

import json
import pathlib

NODE = {"type": "object", "properties": {"v": {"type": "integer", "minimum": -3, "maximum": 120},
                                         "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["v", "next"], "additionalProperties": False}
SCHEMAS = {
    "any": True,
    "nothing": False,
    "types": {"type": ["null", "boolean", "integer", "number", "string"], "maxLength": 3},
    "object": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 2}, "é\"": {}},
               "required": ["x"], "additionalProperties": {"type": "integer"}, "title": "t"},
    "recursive": {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "array": {"type": "array", "items": {"enum": ["a", "ab", 1.5, None, {"k": [1]}]}, "minItems": 1, "maxItems": 3},
    "merged": {"$ref": "#/$defs/s", "maxLength": 2, "anyOf": [{"const": "a"}, {"enum": ["b", "long"]}],
               "$defs": {"s": {"type": "string"}}},
    "circle": {"$ref": "#"},
    "unsupported": {"properties": {"a": {"pattern": "x"}}},
    "ambiguous": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [
        {"type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 5},
        {"type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 6}]}}},
}


def main():
    folder = pathlib.Path(__file__).parent / "corpus" / "schema"
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in SCHEMAS.items():
        text = json.dumps(schema, ensure_ascii=False).encode()
        (folder / name).write_bytes(text + b"\0" + b'{"v": 12, "next": [null, "\\u00e9'[:30] + bytes(range(0, 256, 7)))


if __name__ == "__main__":
    main()
