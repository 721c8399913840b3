#!/usr/bin/env python3
"""Writes corpus/http/: requests of every kind that the server's reader knows, good and bad."""

import pathlib

HOST = b"Host: localhost\r\n"
INPUTS = {
    "get": b"GET /health?a=b HTTP/1.1\r\n" + HOST + b"Authorization: Bearer key\r\n\r\n",
    "post": b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"x-api-key: key\r\nContent-Length: 2\r\n\r\n{}",
    "chunked": b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
               b"2;a=b\r\n{}\r\n0\r\nTrailer: x\r\n\r\n",
    "pipelined": (b"GET /%41 HTTP/1.1\r\n" + HOST + b"\r\n") * 3,
    "expect": b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\na",
    "absolute": b"GET http://allowed.example:80/a?b HTTP/1.1\r\nHost: x\r\n\r\n",
    "origin": b"POST / HTTP/1.1\r\nHost: [::1]:80\r\nOrigin: http://[::1]:80\r\nx-api-key: key\r\n\r\n",
    "old": b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "options": b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    "smuggled": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "long": b"GET /" + b"a" * 600 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "large": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 300\r\n\r\n",
    "folded": b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n c\r\n\r\n",
}

folder = pathlib.Path(__file__).parent / "corpus" / "http"
folder.mkdir(parents=True, exist_ok=True)
for name, text in INPUTS.items():
    (folder / name).write_bytes(b"\x06" + text)
