"""`python -m services.serving` with a manager that loads nothing."""

import sys
from typing import Any

from services.serving import __main__ as serving
from services.serving.replica import manager_process


class _Stubbed(manager_process.ManagerProcess):
    def __init__(self, **fields: Any) -> None:
        super().__init__(command=(sys.executable, "-m", "services.serving.tests.support.stub_manager"), **fields)


def main() -> int:
    vars(serving)["ManagerProcess"] = _Stubbed  # in a process that is the test's alone
    return serving.main()


if __name__ == "__main__":
    sys.exit(main())
