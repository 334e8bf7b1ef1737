"""Write requirements.lock: resolve this project with `pip` under each Python given, and merge the results.

    python launch/update_lock.py python3.10 python3.11 python3.12 python3.13

Give the Pythons from oldest to newest. A version that differs between them gets an environment marker.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

HEADER = """\
# Exact versions of everything that launch/*.sh installs, test tools included, for Python {first} to {last}.
# Written by:  python launch/update_lock.py {pythons}
# Run that line again to update it, then launch/test.sh. The [gpu] and [box2d] extras are added on top with
#   .venv/bin/pip install -c requirements.lock -e '.[gpu]'
"""


def resolve(python: str) -> tuple[str, dict[str, str]]:
    """Return the version of `python`, as "3.11", and the newest set of packages that fits it, by name."""
    version = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*command, f"--report={report}", f"{ROOT}[dev]"], check=True)
        packages = [entry["metadata"] for entry in json.loads(report.read_text("utf-8"))["install"]]
    return version, {p["name"].lower().replace("_", "-"): p["version"] for p in packages}


def merge(resolved: dict[str, dict[str, str]]) -> list[str]:
    """Return one line a package, or one for each run of Pythons (oldest first) that share its version."""
    pythons = list(resolved)
    lines = []
    for name in sorted(set().union(*resolved.values()) - {"async-dqn"}):
        pins = [resolved[python].get(name) for python in pythons]
        start = 0
        for stop in range(1, len(pins) + 1):
            if stop < len(pins) and pins[stop] == pins[start]:
                continue
            if pins[start] is not None:
                lower = [f'python_version >= "{pythons[start]}"'] if start > 0 else []
                upper = [f'python_version < "{pythons[stop]}"'] if stop < len(pins) else []
                marker = " and ".join(lower + upper)
                lines.append(f"{name}=={pins[start]}" + (f" ; {marker}" if marker else ""))
            start = stop
    return lines


def main(pythons: list[str]) -> None:
    if not pythons:
        sys.exit(__doc__)
    resolved = dict(resolve(python) for python in pythons)
    versions = list(resolved)
    names = " ".join(f"python{version}" for version in versions)
    header = HEADER.format(first=versions[0], last=versions[-1], pythons=names)
    (ROOT / "requirements.lock").write_text(header + "\n".join(merge(resolved)) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
