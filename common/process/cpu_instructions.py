"""Which instructions of this CPU the installed TensorFlow was not built to use, in TensorFlow's own words."""

import importlib.util
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

logger = logging.getLogger(__name__)
_LIBRARY, _REPORT_FUNCTION = "libtensorflow_framework.so*", "_ZN10tensorflow4port26InfoAboutUnusedCPUFeaturesEv"
_UNUSED = re.compile(r"enable the following instructions: ([A-Z0-9_ ]+),")
_TIMEOUT_SECONDS = 30.0


class UnusedInstructions:
    """Runs a process that loads one library of TensorFlow and no Python of it: TensorFlow writes the
    sentence to its log once, below the level that a service's processes log at."""

    def __init__(self) -> None:
        found = importlib.util.find_spec("tensorflow")
        folders = [*(found.submodule_search_locations or [])] if found else []
        libraries = [str(path) for folder in folders for path in Path(folder).glob(_LIBRARY)]
        script = f"import ctypes, sys; ctypes.CDLL(sys.argv[1]).{_REPORT_FUNCTION}()"
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
        self._process = (
            subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", script, libraries[0]], env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            if libraries
            else None
        )  # fmt: skip

    def log(self) -> None:
        """A line where there are any; waits until the process has ended."""
        if names := self._names():
            logger.info("TensorFlow was built without some instructions of this CPU", extra={"unused": names})

    def _names(self) -> str:
        """As TensorFlow names them: "AVX2 FMA"; empty where there are none or it does not say."""
        if self._process is None:
            return ""
        try:
            _, log = self._process.communicate(timeout=_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, log = self._process.communicate()
        found = _UNUSED.search(log)
        return found.group(1) if found else ""
