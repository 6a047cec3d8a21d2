"""A writer process: `python -m common.eventlog.tests.writer PARENT_PID URL TOPIC NAME APPENDS THREADS`.

Each thread appends one or two records at a time to partition 0; an example says "NAME THREAD NUMBER". After each
acknowledgement it prints "OFFSET EXAMPLE" for each record. Prints "ready" once the log is open, and begins when it is
sent a line, so that several can be made to write at the same time.
"""

import sys
import threading

from common.eventlog.base import EventLog
from common.eventlog.open import open_event_log
from common.eventlog.tests.records import record
from common.process.lifecycle import die_with_parent


def _write(log: EventLog, topic: str, name: str, appends: int) -> None:
    number = 0
    for turn in range(appends):
        examples = [f"{name} {number + extra}".encode() for extra in range(1 + turn % 2)]
        number += len(examples)
        offsets = log.append(topic, 0, [record(example) for example in examples])
        lines = [f"{offset} {example.decode()}\n" for offset, example in zip(offsets, examples, strict=True)]
        sys.stdout.write("".join(lines))
        sys.stdout.flush()


def main() -> None:
    parent, url, topic, name, appends, threads = sys.argv[1:]
    die_with_parent(int(parent))
    log = open_event_log(url)
    log.end_position(topic)
    print("ready", flush=True)
    sys.stdin.readline()
    writers = [
        threading.Thread(target=_write, args=(log, topic, f"{name} {number}", int(appends)))
        for number in range(int(threads))
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    log.close()


if __name__ == "__main__":
    main()
