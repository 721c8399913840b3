#!/usr/bin/env python3
"""`lca serve` behind nginx with deploy/nginx.conf: TLS, key, Host, streams, bodies, clients that leave.

    tests/deploy/check_nginx.py LCA MODEL        (NGINX=nginx; skips without it)

The configuration is the committed one; ports and the certificate's path are put in its place.
"""

import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import http.client

import traffic

CONFIG = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "nginx.conf"
NAME, KEY = "llm.example.com", "a-key-for-this-check"


def configure(folder, tls, plain, server):
    text = CONFIG.read_text()
    for old, new in [("server 127.0.0.1:8080;", f"server 127.0.0.1:{server};"),
                     ("listen 80;", f"listen 127.0.0.1:{plain};"), ("listen 443 ssl", f"listen 127.0.0.1:{tls} ssl")]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    text = re.sub(r"listen \[::\].*\n", "", text)
    text = re.sub(r"/etc/letsencrypt/live/[^/]*/", f"{folder}/", text)
    (folder / "lca.conf").write_text(text)
    paths = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in
                    ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(f"daemon off;\nuser root;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
                                       f"http {{\naccess_log off;\n{paths}include {folder}/lca.conf;\n}}\n")


class Front:
    def __init__(self, port):
        self.port = port
        self.context = ssl.create_default_context()
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE

    def open(self, method, path, value=None, host=NAME, key=KEY, body=None):
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=120, context=self.context)
        headers = {"Host": host, "Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        connection.request(method, path, json.dumps(value) if value is not None else body, headers)
        return connection, connection.getresponse()

    def ask(self, *words, **more):
        connection, reply = self.open(*words, **more)
        try:
            return reply.status, reply.read()
        finally:
            connection.close()


def chat(tokens, **more):
    return {"messages": [{"role": "user", "content": "Count."}], "max_tokens": tokens, "ignore_eos": True, **more}


def running(server):
    text = traffic.request(server, "GET", "/metrics", headers={"Authorization": f"Bearer {KEY}"})[1].decode()
    return float(re.search(r"^lca_requests_running (\S+)$", text, re.MULTILINE)[1])


def check(front, server, plain, report):
    status, _ = front.ask("POST", "/v1/chat/completions", chat(8))
    report.add("a chat through TLS", status, status == 200)
    status, _ = front.ask("POST", "/v1/chat/completions", chat(8), key=None)
    report.add("without the key", status, status == 401)
    status, _ = traffic.request(server, "GET", "/v1/models", headers={"Host": "evil.example.com", "Authorization": f"Bearer {KEY}"})
    report.add("another name, at the server itself", status, status == 403)
    status, _ = traffic.request(f"http://127.0.0.1:{plain}", "POST", "/v1/chat/completions", chat(8), {"Host": NAME})
    report.add("without TLS", status, status == 308)
    status, _ = front.ask("POST", "/tokenize", {"content": "word " * 400000})
    report.add("a body of 2 MB", status, status == 200)
    status, _ = front.ask("POST", "/tokenize", body=b" " * (65 << 20))
    report.add("a body of 65 MiB", status, status == 413)

    connection, reply = front.open("POST", "/v1/chat/completions", chat(100, stream=True))
    times = []
    while reply.read1(65536):
        times.append(time.monotonic())
    connection.close()
    report.add("pieces of a stream of 100 tokens", f"{len(times)} in {times[-1] - times[0]:.2f} s", len(times) >= 50)

    connection, reply = front.open("POST", "/v1/chat/completions", chat(4000, stream=True))
    reply.read1(65536)
    traffic.until(lambda: running(server) == 1, 20, "the stream runs")
    begin = time.monotonic()
    reply.close()
    connection.close()
    traffic.until(lambda: running(server) == 0, 20, "the place is free")
    report.add("a client that left frees its place", f"after {time.monotonic() - begin:.2f} s", True)


def main():
    lca, model = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    nginx = os.environ.get("NGINX") or shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if not nginx or not shutil.which("openssl"):
        print("SKIPPED: nginx or openssl not found")
        sys.exit(77)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lca-nginx-"))
    report, processes = traffic.Report(), []
    try:
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}",
                        "-keyout", folder / "privkey.pem", "-out", folder / "fullchain.pem"], check=True, capture_output=True)
        (folder / "key").write_text(KEY + "\n")
        tls, plain, port = (traffic.free_port() for _ in range(3))
        configure(folder, tls, plain, port)
        test = subprocess.run([nginx, "-t", "-c", folder / "nginx.conf"], capture_output=True, text=True, check=False)
        report.add("nginx accepts the configuration", "yes" if test.returncode == 0 else test.stderr, test.returncode == 0)
        with open(folder / "log", "w", encoding="utf-8") as log:
            for command in ([lca, "serve", model, "--port", str(port), "--api-key-file", folder / "key", "--allow-host", NAME,
                             "--memory", "1GiB"], [nginx, "-c", folder / "nginx.conf"]):
                processes.append(subprocess.Popen(command, stderr=log, stdout=log))
        server = f"http://127.0.0.1:{port}"
        traffic.until(lambda: traffic.request(server, "GET", "/health", timeout=5)[0] == 200, 120, "the server is ready")
        front = Front(tls)
        traffic.until(lambda: front.ask("GET", "/health")[0] == 200, 20, "nginx is ready")
        check(front, server, plain, report)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)
        if report.failed:
            print(f"logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(report.table())
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
