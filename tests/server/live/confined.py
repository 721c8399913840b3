#!/usr/bin/env python3
"""Runs the program under system calls refused as deploy/lca.service has systemd refuse them, where systemd is not.

    tests/server/live/confined.py serve MODEL [flags]

Refused are those of MemoryDenyWriteExecute=yes and of SystemCallFilter=~@privileged @resources, each where the unit
asks for it (of the two groups, what an ordinary program could call). For x86-64; ends with 77 where the kernel takes
no filter. What @system-service allows is not looked at.
"""

import ctypes
import os
import pathlib
import platform
import struct
import sys

from serving import PROGRAM, ROOT

UNIT = ROOT / "deploy" / "lca.service"
PROT_WRITE, PROT_EXEC, SHM_EXEC = 2, 4, 0o100000
# (system call, argument, bits that are refused together). systemd.exec(5): MemoryDenyWriteExecute.
WRITE_EXECUTE = [(9, 2, PROT_WRITE | PROT_EXEC), (10, 2, PROT_EXEC), (329, 2, PROT_EXEC), (30, 2, SHM_EXEC)]
# By group: what `systemd-analyze syscall-filter` lists, by number.
GROUPS = {
    "@resources": {"ioprio_set": 251, "mbind": 237, "migrate_pages": 256, "move_pages": 279, "sched_setaffinity": 203,
                   "sched_setattr": 314, "sched_setparam": 142, "sched_setscheduler": 144, "set_mempolicy": 238,
                   "set_mempolicy_home_node": 450, "setpriority": 141, "setrlimit": 160},
    "@privileged": {"chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260, "clock_settime": 227, "capset": 126,
                    "chroot": 161, "setuid": 105, "setreuid": 113, "setresuid": 117, "setgroups": 116, "bpf": 321},
}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
X86_64, ALLOW, REFUSE = 0xC000003E, 0x7FFF0000, 0x00050000 | 1  # with EPERM, as SystemCallErrorNumber says
LOAD, AND, EQUAL, RETURN = 0x20, 0x54, 0x15, 0x06  # of the classic Berkeley packet filter


def rules(unit):
    """(system call, argument or None, bits) of what a unit refuses."""
    lines = unit.splitlines()
    made = WRITE_EXECUTE if "MemoryDenyWriteExecute=yes" in lines else []
    for line in lines:
        if line.startswith("SystemCallFilter=~"):
            made = made + [(number, None, 0) for group in line.partition("~")[2].split()
                           for number in GROUPS[group].values()]
    return made


def program_of(refused):
    """The filter: for each rule a piece that ends with refusing, or goes on with the next."""
    made = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, X86_64), (RETURN, 0, 0, ALLOW)]
    for number, argument, bits in refused:
        looks = [] if argument is None else [(LOAD, 0, 0, 16 + 8 * argument), (AND, 0, 0, bits), (EQUAL, 0, 1, bits)]
        made += [(LOAD, 0, 0, 0), (EQUAL, 0, len(looks) + 1, number), *looks, (RETURN, 0, 0, REFUSE)]
    return [*made, (RETURN, 0, 0, ALLOW)]


def confine(steps):
    raw = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(raw)))
    libc = ctypes.CDLL(None, use_errno=True)
    return (libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 and
            libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(header), 0, 0) == 0)


def main():
    if platform.machine() != "x86_64" or not confine(program_of(rules(pathlib.Path(UNIT).read_text()))):
        print("SKIPPED: no filter of system calls here", file=sys.stderr)
        return 77
    os.execv(PROGRAM, [str(PROGRAM), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
