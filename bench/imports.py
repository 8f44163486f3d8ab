"""How long `import samepolicy` takes in a fresh interpreter, beside NumPy alone, and what it loads."""

import subprocess
import sys
from statistics import median

from _publish import publish

HEAVY = ("torch", "scipy", "pyarrow", "plotly", "transformers")
REPEATS = 11


def seconds(package: str) -> float:
    """Time of one import in a fresh interpreter."""
    code = f"import time; t = time.perf_counter(); import {package}; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def loaded() -> list[str]:
    """Which of the heavy packages the import loads."""
    code = f"import sys, samepolicy; print(*[p for p in {HEAVY} if p in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def main() -> None:
    """Run and publish."""
    packages = ("numpy", "samepolicy", "torch")
    found: dict[str, list[float]] = {p: [] for p in packages}
    for _ in range(REPEATS):
        for package in packages:
            found[package].append(seconds(package))
    rows = [{"import": p, "median ms": round(1000 * median(times))} for p, times in found.items()]
    heavy = ", ".join(loaded()) or "none"
    publish("imports", f"Import in a fresh interpreter; heavy packages that samepolicy loads: {heavy}.", rows)


if __name__ == "__main__":
    main()
