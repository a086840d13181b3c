"""Runs rdma-core's tests on a device, and says of each how it went: `OUTCOME ID[: REASON]`.

Arguments: the device, its GID index, then parts of ids of tests to be run (all, if there are none).
"""
import os
import signal
import sys
import traceback
import unittest

# Of other vendors' devices: they would skip themselves.
OTHERS = ("test_mlx5", "test_efa")
# Seconds a test may take; the longest needs a few.
LIMIT = 60

device, gid, *parts = sys.argv[1:]
sys.argv = [sys.argv[0], "--dev", device, "--gid", gid]
sys.path[:0] = ["/tmp", "/tmp/tests"]
for name in os.listdir("/tmp/tests"):
    if name.startswith(OTHERS):
        os.remove(os.path.join("/tmp/tests", name))

from args_parser import parser  # noqa: E402

parser.parse_args()
import tests  # noqa: E402


def last_line(error):
    return "".join(traceback.format_exception_only(error[0], error[1])).strip().replace("\n", " ")


class Result(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        print("begin", test.id(), flush=True)
        signal.alarm(LIMIT)

    def say(self, outcome, test, reason=""):
        signal.alarm(0)
        reason = " ".join(reason.split())
        print(f"{outcome} {test.id()}{': ' if reason else ''}{reason}", flush=True)

    def addSuccess(self, test):
        self.say("ok", test)

    def addSkip(self, test, reason):
        self.say("skip", test, reason)

    def addFailure(self, test, error):
        traceback.print_exception(*error)
        self.say("fail", test, last_line(error))

    addError = addFailure

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addFailure(subtest, error)


def late(number, frame):
    raise TimeoutError(f"took longer than {LIMIT} s")


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        elif not parts or any(part in test.id() for part in parts):
            yield test


signal.signal(signal.SIGALRM, late)
loader = unittest.TestLoader()
unittest.TestSuite(flat(loader.loadTestsFromModule(tests))).run(Result())
