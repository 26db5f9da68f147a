"""Runs Go tests and notes how long each one takes.

    python .ci/gotest.py ARGUMENT...

The arguments are those of `go test`, and so is what is printed: a line for each package, and the
output of tests that fail. Durations go to the folder that EPIGRAD_DURATIONS names, and "skip" in
place of that of a test that does not run here.
"""

import collections
import json
import os
import pathlib
import subprocess
import sys


def main() -> int:
    output = collections.defaultdict[tuple[str, str], list[str]](list)
    seconds: dict[str, float | str] = {}
    with subprocess.Popen(["go", "test", "-json", *sys.argv[1:]], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            package, test = event.get("Package", ""), event.get("Test", "")
            match event["Action"]:
                case "output" if test:
                    output[package, test].append(event["Output"])
                case "output" | "build-output":
                    if event["Output"] not in ("PASS\n", "testing: warning: no tests to run\n"):
                        print(event["Output"], end="", flush=True)
                case "fail" if test:
                    print("".join(output.pop((package, test), [])), end="", flush=True)
                case "fail":
                    # The package has ended before these tests, by a panic or a timeout.
                    for key in [key for key in output if key[0] == package]:
                        print("".join(output.pop(key)), end="", flush=True)
            if event["Action"] in ("pass", "fail", "skip") and test:
                output.pop((package, test), None)
                seconds[f"{package} {test}"] = "skip" if event["Action"] == "skip" else event["Elapsed"]
    folder = os.environ.get("EPIGRAD_DURATIONS")
    if folder:
        # A test's time has that of its subtests in it, which are in the list themselves.
        parents = {name.rpartition("/")[0] for name in seconds}
        with pathlib.Path(folder, f"go-{os.getpid()}.jsonl").open("w") as file:
            file.writelines(json.dumps([name, took]) + "\n" for name, took in seconds.items() if name not in parents)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
