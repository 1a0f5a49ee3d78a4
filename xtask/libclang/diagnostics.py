"""Prints the warnings and errors of libclang for each C++ file: one line each, fields by tabs.

Arguments: files. PYTHONPATH must contain the package `clang` of libclang's wheel.
"""

import sys

from clang import cindex

ARGUMENTS = ["-std=c++17", "-target", "x86_64-linux-gnu", "-Wall", "-Wextra"]

index = cindex.Index.create()
for path in sys.argv[1:]:
    for diagnostic in index.parse(path, args=ARGUMENTS).diagnostics:
        if diagnostic.severity >= cindex.Diagnostic.Warning:
            print(path, diagnostic.location.line, diagnostic.spelling, sep="\t")
