"""The metrics of all replicas as one page of Prometheus' text format: each sample gets the label `replica`."""

import re

SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (.+)$")


def merge(replies):
    """`replies`: replica → (status, headers, body). Status, headers and body of the page; a refusal (a wrong key) is
    passed on as it came."""
    for _, (status, headers, body) in sorted(replies.items()):
        if status != 200:
            return status, headers, body
    families, notes = {}, {}
    for replica, (_, _, body) in sorted(replies.items()):
        family = ""
        for line in body.decode("utf-8", "replace").splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                if line not in notes.setdefault(family, []):
                    notes[family].append(line)
                families.setdefault(family, [])
            elif sample := SAMPLE.match(line):
                name, labels, value = sample.groups()
                labels = f'replica="{replica}"' + (f",{labels}" if labels else "")
                # Samples of a histogram are named after their family with an ending.
                home = family if family and name.startswith(family) else name
                families.setdefault(home, []).append(f"{name}{{{labels}}} {value}")
    lines = []
    for family, samples in families.items():
        lines += notes.get(family, []) + samples
    text = "\n".join(lines) + "\n" if lines else ""
    return 200, [("content-type", "text/plain; version=0.0.4; charset=utf-8")], text.encode()
