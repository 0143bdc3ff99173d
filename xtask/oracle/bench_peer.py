#!/usr/bin/env python3
"""XLA's side of the benchmark: reads 'parse FILE' and 'print FILE' lines, answers each with the CPU seconds it took.

A print times to_string() of the module that the last parse of the file made."""
import json
import sys
import time

from jaxlib import _hlo

texts, modules = {}, {}
for line in sys.stdin:
    what, file = line.rstrip("\n").split(" ", 1)
    if file not in texts:
        with open(file) as f:
            texts[file] = f.read()
    try:
        if what == "parse":
            modules.pop(file, None)
            start = time.process_time()
            modules[file] = _hlo.hlo_module_from_text(texts[file])
            seconds, size = time.process_time() - start, len(texts[file])
        else:
            module = modules[file]
            start = time.process_time()
            printed = module.to_string()
            seconds, size = time.process_time() - start, len(printed)
        print(json.dumps(dict(seconds=seconds, bytes=size)), flush=True)
    except Exception as e:
        print(json.dumps(dict(error=str(e)[:500])), flush=True)
