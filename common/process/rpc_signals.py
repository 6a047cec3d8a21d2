"""How often gRPC's waits look for signals: each channel and server wakes for it, also where nothing comes."""

import ctypes
from contextlib import suppress
from functools import cache

from grpc import _common
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # the stubs leave it out

LOOK_SECONDS = 2.0
"""As gRPC has it under gevent; else its queues look 5 times a second, and who reads a stream 10 times. A call may take
so long to notice Ctrl-C."""


@cache
def look_seldom() -> None:
    """From now on, in all waits of this process. A gRPC without these variables keeps to its own periods.

    That of the queues is exported to other modules of Cython, which take it from `__pyx_capi__`, and not to Python.
    """
    _common.MAXIMUM_WAIT_TIMEOUT = LOOK_SECONDS
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    with suppress(AttributeError, KeyError, ValueError):
        exported = cygrpc.__pyx_capi__["g_interrupt_check_period_ms"]
        ctypes.c_int.from_address(pointer_of(exported, b"int")).value = int(1000 * LOOK_SECONDS)
