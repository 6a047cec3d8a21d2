"""`python -m e2e_tests.faults`: faults at random, and a judgement over everything that was heard. Exit status 1: a rule
was broken; 3: none was, but SIGTERM or Ctrl-C ended the run before all its faults (--at-most-seconds does not count).
`--judge HISTORY...` judges kept histories again and shows one table of all of them."""

import argparse
import math
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e_tests.faults.checker import judge
from e2e_tests.faults.early_end import EarlyEnd
from e2e_tests.faults.history import read_history
from e2e_tests.faults.injection import Injector, LocalInjector
from e2e_tests.faults.run import FaultRun, Options, progress_bar
from e2e_tests.faults.stream import ROUND_EVENTS
from e2e_tests.faults.table import Judged, markdown, show
from headrace import HeadraceError

BUILD_DIR = Path("build/faults")
_ENDED_EARLY_STATUS = 3


def main() -> int:
    """The exit status."""
    arguments = _parser().parse_args()
    judged = [_judged(path) for path in arguments.judge] if arguments.judge else [_run(_options(arguments))]
    show(judged)
    if arguments.markdown:
        arguments.markdown.write_text(markdown(judged))
    return exit_status(judged)


def exit_status(judged: Sequence[Judged]) -> int:
    """0: no rule was broken; 1: one was; 3: none was, but there are faults that were never tried."""
    if any(one.violations for one in judged):
        return 1
    return _ENDED_EARLY_STATUS if any(one.early_end and not one.early_end.was_planned for one in judged) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e_tests.faults", description=__doc__)
    parser.add_argument("--mode", choices=["local", "compose"], default="local")
    parser.add_argument("--kills", type=int, default=25, help="how many faults (25)")
    parser.add_argument(
        "--at-most-seconds", type=float, default=math.inf, metavar="SECONDS", help="strikes no more after this long"
    )
    parser.add_argument("--seed", type=int, help="repeats a run's faults; printed when left out")
    parser.add_argument("--pause-seconds", type=_span, default=(5.0, 30.0), metavar="LEAST:MOST", help="5:30")
    parser.add_argument(
        "--overlap", type=float, default=0.0, metavar="SHARE", help="of the strikes that hit two targets at once (0)"
    )
    parser.add_argument(
        "--round-events", type=int, default=ROUND_EVENTS, help=f"waiting events that start a round ({ROUND_EVENTS})"
    )
    parser.add_argument("--trainers", type=int, default=1, help="several compute every round together (1)")
    parser.add_argument("--canary", action="store_true", help="versions come to production in stages, judged by rule 8")
    parser.add_argument("--table", action="store_true", help="the model has 32 MB; its versions travel as patches")
    parser.add_argument("--only", nargs="+", default=(), metavar="FAULT", help="such as 'kill -9: redis'; all of them")
    parser.add_argument("--folder", type=Path, help="where the history and the logs go (build/faults/MODE-SEED)")
    parser.add_argument("--judge", type=Path, nargs="+", metavar="HISTORY", help="run nothing, judge these")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="writes the table there as well")
    return parser


def _span(text: str) -> tuple[float, float]:
    least, _, most = text.partition(":")
    span = float(least), float(most or least)
    if not 0 < span[0] <= span[1]:
        raise argparse.ArgumentTypeError(f"expected LEAST:MOST seconds, such as 5:30, got {text!r}")
    return span


def _options(arguments: argparse.Namespace) -> Options:
    seed = random.SystemRandom().randrange(2**31) if arguments.seed is None else arguments.seed
    folder = arguments.folder or BUILD_DIR / f"{arguments.mode}-{seed}"
    print(f"SEED={seed}, history and logs in {folder}; SIGTERM to {os.getpid()} or Ctrl-C ends it early", flush=True)
    return Options(
        arguments.mode,
        arguments.kills,
        seed,
        folder.absolute(),
        tuple(arguments.only),
        arguments.pause_seconds,
        overlap=arguments.overlap,
        at_most_seconds=arguments.at_most_seconds,
        trainers=arguments.trainers,
        round_events=arguments.round_events,
        has_canary=arguments.canary,
        has_table=arguments.table,
    )


def _run(options: Options) -> Judged:
    early_end = EarlyEnd()
    with early_end.listening(), progress_bar() as progress:
        try:
            injector = _injector(options)
        except HeadraceError as error:
            raise SystemExit(f"faults: the platform did not start: {error}") from error
        run = FaultRun(options, injector, progress, early_end)
        try:
            return run.run()
        finally:
            run.keep_logs()
            injector.close()


def _injector(options: Options) -> Injector:
    if options.mode == "local":
        return LocalInjector(options.folder, trainers=options.trainers, has_table=options.has_table)
    from e2e_tests.faults.compose_injection import ComposeInjector  # only there is the docker SDK needed

    return ComposeInjector(options.folder, trainers=options.trainers, has_table=options.has_table)


def _judged(path: Path) -> Judged:
    history = read_history(path)
    return Judged(history, judge(history))


if __name__ == "__main__":
    sys.exit(main())
