"""Errors of the front in the words of the protocol that the caller speaks, as the server itself writes them."""

import json

TYPES = {413: ("invalid_request_error", "request_too_large"), 429: ("rate_limit_error", "rate_limit_error"),
         503: ("server_error", "overloaded_error")}


def is_anthropic(path):
    return path.startswith("/v1/messages")


def error_body(path, status, message):
    openai, anthropic = TYPES.get(status, ("server_error", "api_error"))
    if is_anthropic(path):
        value = {"type": "error", "error": {"type": anthropic, "message": message}}
    else:
        value = {"error": {"message": message, "type": openai, "param": None, "code": None}}
    return json.dumps(value).encode()


def error_event(path, message):
    """The last event of a stream that cannot go on. It starts on a line of its own, wherever the stream broke."""
    if path == "/v1/responses":
        data = json.dumps({"type": "error", "code": "server_error", "message": message, "param": None}).encode()
        return b"\n\nevent: error\ndata: " + data + b"\n\n"
    name = b"event: error\n" if is_anthropic(path) else b""
    return b"\n\n" + name + b"data: " + error_body(path, 500, message) + b"\n\n"
