"""Runs the tests on real models, and prints their figures. `make test-real` calls it.

    python3 run.py [--document] [TEST ...]

--document writes the figures to docs/parity.md, below the heading of real models.
"""
import sys
import time
import unittest

import fetch

MODULES = ("test_decoders", "test_encoders", "test_requests", "test_programs")


def document(text):
    """Replaces the last section of docs/parity.md."""
    import real

    path, heading = real.ROOT / "docs/parity.md", "\n## Real models\n"
    before = path.read_text(encoding="utf-8").partition(heading)[0]
    path.write_text(before + heading + text, encoding="utf-8")


def main(arguments):
    names = [name for name in arguments if name != "--document"] or MODULES
    began = time.monotonic()
    fetch.main([])
    fetched = time.monotonic() - began
    import real

    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    for test, reason in result.skipped:
        print(f"skipped: {test}: {reason}")
    print(real.table(real.TABLE_HEAD, real.TABLE))
    print(real.table(real.VECTORS_HEAD, real.VECTORS))
    print(f"{fetched:.0f} s to fetch or check the models, {time.monotonic() - began - fetched:.0f} s of tests")
    if "--document" in arguments and result.wasSuccessful():
        document(real.document())
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main(sys.argv[1:])
