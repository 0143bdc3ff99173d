#!/usr/bin/env python3
"""Check one module with its collectives decomposed for several clusters, judged by real XLA.

decompose_case.py CONFIG.json: the configuration of check_case.py, and pipelines: {name: pipeline}. The untouched module runs
once; every pipeline's cases are those of check_case.py, `NAME.xla`, `NAME.eval` and `NAME.again`, and the corruption
`NAME.gather_backwards`, which must be seen."""
import sys
from functools import cached_property

import check_case
import mutants


class Decomposed(check_case.Module):
    """A module under one pipeline; what the untouched module gives is shared."""

    def __init__(self, whole, name, pipeline):
        self.__dict__.update(whole.__dict__)
        self.whole, self.name = whole, name
        self.config = dict(whole.config, pipeline=pipeline)

    def path(self, name):
        return self.whole.path(f"{self.name}.{name}")

    @cached_property
    def reference(self):
        found = self.whole.reference
        self.shapes = self.whole.shapes
        return found


def cases(whole):
    """{name: check} in the order of running."""
    listed = {}
    for name, pipeline in whole.config["pipelines"].items():
        decomposed = Decomposed(whole, name, pipeline)
        checks = {
            "xla": check_case.pass_in_xla,
            "eval": check_case.pass_in_evaluator,
            "again": check_case.pass_again,
            "gather_backwards": check_case.mutant(mutants.gather_backwards),
        }
        for case, check in checks.items():
            listed[f"{name}.{case}"] = lambda _, check=check, decomposed=decomposed: check(decomposed)
    return listed


if __name__ == "__main__":
    module = check_case.Module(check_case.prepare(sys.argv[1]))
    check_case.run(module, cases(module))
