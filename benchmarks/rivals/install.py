"""`python -m benchmarks.rivals.install [NAME ...]`: one virtual environment per rival, below build/rivals/.

Without names: all of them. An environment that is complete is left as it is; one whose
requirements have changed, or whose installation broke off, is made again. The packages come from PyPI, each rival's
pinned in requirements/<name>.txt.

TensorFlow is installed once, into a separate environment, which the others see behind their own packages. MLServer
does not agree with that (it needs an older protobuf), and has one itself.
"""

import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path("build/rivals")
_REQUIREMENTS = Path(__file__).with_name("requirements")
_TENSORFLOW = "tensorflow"
_HAS_ITS_OWN_TENSORFLOW = {"mlserver", _TENSORFLOW}
_PIP_SECONDS = 900


def names() -> list[str]:
    """Every rival that can be installed."""
    return sorted(path.stem for path in _REQUIREMENTS.glob("*.txt") if path.stem != _TENSORFLOW)


def python_of(name: str) -> Path:
    """The interpreter of a rival's environment, absolute; its commands lie beside it."""
    return (ROOT / name / "bin" / "python").absolute()


def is_installed(name: str) -> bool:
    done = ROOT / name / "requirements.sha256"
    return done.is_file() and done.read_text() == _digest(name)


def install(name: str) -> None:
    """Makes the environment. A crash leaves one behind that is not marked as complete.

    Raises:
        CalledProcessError: pip could not install what the requirements name.
    """
    if is_installed(name):
        return
    directory = ROOT / name
    shutil.rmtree(directory, ignore_errors=True)
    venv.create(directory, with_pip=True, symlinks=True)
    subprocess.run(
        [str(python_of(name)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "-r", str(_REQUIREMENTS / f"{name}.txt")],
        check=True, timeout=_PIP_SECONDS,
    )  # fmt: skip
    if name not in _HAS_ITS_OWN_TENSORFLOW:
        # A .pth file's folder comes after the environment's own packages, which therefore win.
        (_packages(name) / "zz_tensorflow.pth").write_text(f"{_packages(_TENSORFLOW)}\n")
    (directory / "requirements.sha256").write_text(_digest(name))


def _packages(name: str) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return (ROOT / name / "lib" / version / "site-packages").absolute()


def _digest(name: str) -> str:
    return hashlib.sha256((_REQUIREMENTS / f"{name}.txt").read_bytes()).hexdigest()


def main() -> int:
    wanted = sys.argv[1:] or names()
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        print(f"no rival named {', '.join(unknown)}; there are {', '.join(names())}", file=sys.stderr)
        return 2
    failed = []
    for name in [_TENSORFLOW, *wanted]:
        try:
            install(name)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"{name}: not installed: {error}", file=sys.stderr)
            failed.append(name)
            continue
        print(f"{name}: installed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
