"""Control and zygote talk over a Unix socket of packets (SOCK_SEQPACKET), one JSON object each:

    zygote to control   {"ready": import seconds}            once
    control to zygote   {"spawn": true}                      with the child's end of a channel, and its assignment
    zygote to control   {"spawned": pid}                     the answer
    control to zygote   {"signal": n, "pid": pid}            ignored when the child has ended; 9 goes to its whole group
    control to zygote   {"sweep": true}                      ends what rounds have left behind
    zygote to control   {"exited": pid, "status": n}         n as in subprocess: -9 is "killed by signal 9"

The channel is a pair of stream sockets: the child writes its messages (messages.py) and hands over the calls that
control answers (calls.py), and where it waits for another round, control writes a byte with the next assignment. Closed
by control: the child ends.

An assignment travels as a descriptor of memory. It says how a process is confined, and a file in a folder of rounds
could be changed by an earlier round's code before the process has read it.

Control gone: the zygote hears the socket's end, and ends all that descends from it, also what authors' code has forked
and left. Zygote gone: the kernel kills its children (die_with_parent), and what these have forked stays.
"""

from collections.abc import Mapping

MAX_PACKET_BYTES = 16 * 1024
CRASHED = 70
"""Exit status of a child whose round function raised something that is none of the six (EX_SOFTWARE)."""
ENVIRONMENT: Mapping[str, str] = {
    "OPENBLAS_NUM_THREADS": "1",  # else importing numpy starts threads
    "PYTHONHASHSEED": "0",  # the order of a set must not differ from attempt to attempt
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
"""What control sets for the zygote beyond its own environment."""
