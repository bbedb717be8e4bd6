"""Runs rdma-core's tests of pyverbs, and tells how each one ended.

    run.py FOLDER RESULTS LEFT_OUT... -- OPTIONS...

FOLDER has the suite as a package called `tests`; the modules named LEFT_OUT are not run; OPTIONS are
the suite's own. RESULTS is written line by line, fields parted by tabs:

    absent  MODULE          LEFT_OUT names it, and the suite lacks it
    run     TEST            it begins
    OUTCOME TEST    TEXT    passed, skipped, failed or error, and why

A test that was begun and has no outcome ended this program.
"""

import sys
import unittest


class Record(unittest.TextTestResult):
    """Writes down what happens to each test."""

    out = None

    def line(self, outcome, test, text=""):
        name = test.id().removeprefix("tests.")
        print(outcome, name, " ".join(str(text).split()), sep="\t", file=self.out, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.line("run", test)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.line("passed", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.line("skipped", test, reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.line("failed", test, err[1])

    def addError(self, test, err):
        super().addError(test, err)
        self.line("error", test, err[1])

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.line("failed", test, "as the suite expects")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.line("failed", test, "passed, which the suite does not expect")

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.line("failed", test, f"{subtest}: {err[1]}")


def main():
    end = sys.argv.index("--")
    folder, results, *left_out = sys.argv[1:end]
    sys.argv[1:] = sys.argv[end + 1 :]
    # Its modules find each other both ways.
    sys.path[:0] = [folder, folder + "/tests"]
    from args_parser import parser

    parser.parse_args()
    import tests

    modules = {module.__name__.removeprefix("tests."): module for module in tests.__test_modules__}
    absent = [name for name in left_out if modules.pop(name, None) is None]
    if not modules:
        sys.exit(f"the suite in {folder} has no modules")
    load = unittest.defaultTestLoader.loadTestsFromModule
    suite = unittest.TestSuite(load(module) for module in modules.values())
    with open(results, "w", encoding="utf-8") as Record.out:
        for name in absent:
            print("absent", name, "", sep="\t", file=Record.out)
        unittest.TextTestRunner(resultclass=Record, verbosity=2).run(suite)


main()
