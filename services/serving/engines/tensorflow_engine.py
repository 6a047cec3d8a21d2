"""Loads a SavedModel into TensorFlow and answers its signatures: arrays in, arrays out.

A v1 session with the single-threaded executor calls a small model in a fifth of the time that the signature's own
function takes. The executor refuses graphs with low-level control flow (Switch, Merge), which is also what XLA makes of
a graph, and it runs one operation at a time; such graphs, and those that are to use several threads for their
operations, get TensorFlow's default executor, as `TensorFlowEngine.kind` shows.
"""

import contextlib
import logging
import os
import threading
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2

from common.process.pace import UNLIMITED, Pace
from services.serving.engines import onednn
from services.serving.engines.state_reader import SMALL_BYTES, StateReader
from services.serving.engines.tensorflow_program import Program
from services.serving.options.model_options import GPU, DeviceName, EngineOptions
from services.serving.wire.codes import Code
from services.serving.wire.prediction import Arrays, RequestFailed, invalid
from services.serving.wire.replica_state import Signature, TensorSpec

logger = logging.getLogger(__name__)

SINGLE_THREADED = "session, single-threaded executor"
DEFAULT_EXECUTOR = "session, default executor"
_EXECUTOR_TYPE = "SINGLE_THREADED_EXECUTOR"
_FILTERED_CALLABLES = 32
_CALLER_THREAD_POOL, _SESSION_THREAD_POOL = -1, 0
_XLA_FLAGS = "--tf_xla_cpu_global_jit"


class TensorFlowEngine:
    """A loaded SavedModel: a session over its program. Calls are thread-safe."""

    refuses_states = ""

    def __init__(self, program: Program, kind: str, *, thread_pool: int) -> None:
        """Its variables have no values before the first `take`. Raises tf.errors.OpError: the executor refuses the
        graph."""
        self._program = program
        self._thread_pool = thread_pool
        self.kind = kind
        self.reasons: Mapping[str, str] = {}
        self.signatures: dict[str, Signature] = signatures_of(program.meta_graph)
        self._assign: Callable[..., Any] | None = None
        self._reader = StateReader(program.names) if program.names is not None else None
        self._session = program.session()
        try:
            self._whole = _callables(self._session, self.signatures, thread_pool)
        except BaseException:
            self._session.close()
            raise
        self._filtered: OrderedDict[tuple[str, tuple[str, ...]], _Callable] = OrderedDict()
        self._filtering = threading.Lock()

    def run(self, signature: str, inputs: Arrays, output_filter: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
        """Runs a signature.

        Args:
            inputs: exactly the signature's inputs, with its dtypes (strings: object arrays of bytes).
            output_filter: names of outputs; empty means all.

        Raises:
            RequestFailed: TensorFlow refused; it has TensorFlow's code and words.
        """
        call = self._callable(signature, output_filter)
        try:
            return call(inputs)
        except tf.errors.OpError as error:
            raise RequestFailed(int(error.error_code), str(error.message)) from error
        except UnicodeDecodeError as error:  # TensorFlow's sentence holds bytes of the request
            raise invalid(error.object.decode(errors="replace")) from error

    def callable_signatures(self) -> tuple[str, ...]:
        """The signatures that can be called."""
        return tuple(self._whole)

    def beside(self) -> "TensorFlowEngine":
        """Another model of the same program, with variables of its own, that has taken none yet."""
        return TensorFlowEngine(self._program, self.kind, thread_pool=self._thread_pool)

    def take(self, directory: Path, pace: Pace | None = None) -> None:
        """Takes the variables of a SavedModel of the same program. Nobody may call it meanwhile; when this fails, its
        values are nobody's.

        Args:
            pace: reads them piece by piece, beside versions that answer; None: as fast as TensorFlow does.

        Raises:
            RequestFailed: they cannot be read, are damaged, or do not fit the graph.
        """
        with _failures(directory):
            self._program.check(directory)
            values = self._reader.read(directory, pace) if pace and self._reader else None
            if values is None:
                self._program.restore(self._session, directory)
            else:
                self.put(values)
            self._program.fill_tables(self._session, directory)

    def values(self) -> Sequence[np.ndarray] | None:
        """The values of its variables, copied; None where it has more state than variables."""
        try:
            return self._program.values(self._session)
        except tf.errors.OpError:  # a variable that neither the files nor the initialisation give a value
            return None

    def put(self, values: Sequence[np.ndarray]) -> None:
        """Makes the values of another model of its program its own, in microseconds. Nobody may call it meanwhile."""
        if self._assign is None:
            self._assign = self._program.assignment(self._session)
        self._assign(*values)

    def close(self) -> None:
        """Gives its memory back."""
        self._session.close()
        self._whole.clear()
        self._filtered.clear()
        self._assign = None
        del self._session

    def _callable(self, signature: str, output_filter: tuple[str, ...]) -> "_Callable":
        if not output_filter:
            return self._whole[signature]
        key = (signature, output_filter)
        with self._filtering:  # Batches of one version may run in several threads.
            known = self._filtered.get(key)
            if known is None:
                known = _Callable(self._session, self.signatures[signature], output_filter, self._thread_pool)
                self._filtered[key] = known
                if len(self._filtered) > _FILTERED_CALLABLES:
                    self._filtered.popitem(last=False)
                return known
            self._filtered.move_to_end(key)
            return known


def _callables(session: Any, signatures: Mapping[str, Signature], thread_pool: int) -> dict[str, "_Callable"]:
    """Of the signatures that can be called: not a signature whose tensors cannot be fed (sparse, ragged, one tensor as
    two inputs) takes no other with it. Raises tf.errors.OpError: the executor refuses the graph."""
    callables: dict[str, _Callable] = {}
    for name, signature in signatures.items():
        if not _is_callable(signature):
            continue
        try:
            callables[name] = _Callable(session, signature, tuple(signature.outputs), thread_pool)
        except tf.errors.InvalidArgumentError as error:
            if _refuses_graph(error):
                raise
            logger.warning("a signature cannot be called", extra={"signature": name, "reason": str(error.message)})
    return callables


def _refuses_graph(error: tf.errors.OpError) -> bool:
    """Whether it is the single-threaded executor that does not take the graph."""
    return "ingle-threaded executor" in str(error.message)


class _Callable:
    """A signature, or some of its outputs, compiled into a single call of the session."""

    def __init__(self, session: Any, signature: Signature, outputs: Sequence[str], thread_pool: int) -> None:
        fed = {spec.tensor_name: name for name, spec in signature.inputs.items()}
        # The session refuses to fetch a fed tensor.
        self._passed_on = {
            name: fed[signature.outputs[name].tensor_name]
            for name in outputs
            if signature.outputs[name].tensor_name in fed
        }
        self._inputs = tuple(signature.inputs)
        self._outputs = tuple(name for name in outputs if name not in self._passed_on)
        options = config_pb2.CallableOptions()
        options.feed.extend(signature.inputs[name].tensor_name for name in self._inputs)
        options.fetch.extend(signature.outputs[name].tensor_name for name in self._outputs)
        options.run_options.inter_op_thread_pool = thread_pool
        self._call = session._make_callable_from_options(options) if self._outputs else None

    def __call__(self, inputs: Arrays) -> dict[str, np.ndarray]:
        values = self._call(*[inputs[name] for name in self._inputs]) if self._call else ()
        outputs = {name: _array(value) for name, value in zip(self._outputs, values, strict=True)}
        outputs.update({name: inputs[source] for name, source in self._passed_on.items()})
        return outputs


def _array(value: Any) -> np.ndarray:
    """A scalar string comes as bytes, of which numpy's own strings would lose zeros at the end."""
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


def load(directory: Path, options: EngineOptions, *, is_cautious: bool = False) -> TensorFlowEngine:
    """Loads a SavedModel: restores its variables, initialises its tables, compiles every signature.

    Args:
        options: its device, thread counts, is_xla, rewriters_off and saved_model_tags count here.
        is_cautious: use the default executor from the start. A few graphs do not make the single-threaded one refuse
            but crash (a loop outside of every function, TensorFlow 2.21).

    Raises:
        RequestFailed: the directory holds no SavedModel that TensorFlow can load; the message is TensorFlow's.
    """
    with _failures(directory):
        _prepare(options.device)
        if is_cautious or options.is_xla or options.inter_op_threads > 1 or options.device == GPU:
            return _load(directory, "", _default_kind(options), options)
        try:
            return _load(directory, _EXECUTOR_TYPE, SINGLE_THREADED, options)
        except tf.errors.OpError as error:
            if not _refuses_graph(error):
                raise
            return _load(directory, "", DEFAULT_EXECUTOR, options)


def _is_large(directory: Path) -> bool:
    """Then its values go into memory that those of a later version overwrite: new memory takes longer than a read."""
    return sum(file.stat().st_size for file in (directory / "variables").glob("*")) > SMALL_BYTES


@contextlib.contextmanager
def _failures(directory: Path) -> Iterator[None]:
    try:
        yield
    except RequestFailed as error:
        raise RequestFailed(error.code, f"cannot load {directory.name}: {error.message}") from error
    except tf.errors.OpError as error:
        raise RequestFailed(int(error.error_code), f"cannot load {directory.name}: {error.message}") from error
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise RequestFailed(tf.errors.UNKNOWN, f"cannot load {directory.name}: {error}") from error


def _prepare(device: DeviceName) -> None:
    """A GPU then multiplies whole float32 numbers, as the trainer's gate judged them. Raises RequestFailed: this
    process has no such device."""
    if device == GPU and not tf.config.list_physical_devices("GPU"):
        raise RequestFailed(Code.FAILED_PRECONDITION, "SERVING_DEVICE is gpu, and TensorFlow finds no GPU here")
    tf.config.experimental.enable_tensor_float_32_execution(False)


def _default_kind(options: EngineOptions) -> str:
    parts = [DEFAULT_EXECUTOR]
    if options.device == GPU:
        parts.append("on a GPU")
    if options.inter_op_threads > 1:
        parts.append(f"{options.inter_op_threads} operations at a time")
    if options.is_xla:
        parts.append("compiled with XLA")
    return ", ".join(parts)


def _load(directory: Path, executor_type: str, kind: str, options: EngineOptions) -> TensorFlowEngine:
    config = config_pb2.ConfigProto(
        intra_op_parallelism_threads=options.intra_op_threads,
        inter_op_parallelism_threads=options.inter_op_threads,
        use_per_session_threads=True,
        device_count={} if options.device == GPU else {"GPU": 0},
        allow_soft_placement=options.device == GPU,
    )
    config.experimental.executor_type = executor_type
    if options.is_xla:
        # Read once, when a process makes its first session; a runner has made none before.
        os.environ["TF_XLA_FLAGS"] = _XLA_FLAGS
        config.graph_options.optimizer_options.global_jit_level = config_pb2.OptimizerOptions.ON_2
    for name in options.rewriters_off:
        setattr(config.graph_options.rewrite_options, name, rewriter_config_pb2.RewriterConfig.OFF)
    pool = _SESSION_THREAD_POOL if options.inter_op_threads > 1 else _CALLER_THREAD_POOL
    without = [f"without {', '.join(options.rewriters_off)}"] if options.rewriters_off else []
    shown = ", ".join([kind, *(["oneDNN"] if onednn.is_on() else []), *without])
    engine = TensorFlowEngine(Program(directory, options.saved_model_tags, config), shown, thread_pool=pool)
    try:
        engine.take(directory, UNLIMITED if _is_large(directory) else None)
    except BaseException:
        engine.close()
        raise
    return engine


def signatures_of(meta_graph: meta_graph_pb2.MetaGraphDef) -> dict[str, Signature]:
    """Every signature of an export, the loader's own included, with its inputs and outputs in order of name."""
    return {
        name: Signature(
            definition.method_name,
            _specs(definition.inputs),
            _specs(definition.outputs),
            {key: b64encode(proto.SerializeToString()).decode() for key, proto in sorted(definition.defaults.items())},
        )
        for name, definition in sorted(meta_graph.signature_def.items())
    }


def _specs(tensors: Mapping[str, meta_graph_pb2.TensorInfo]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(
            dtype=types_pb2.DataType.Name(info.dtype),
            shape=None if info.tensor_shape.unknown_rank else tuple(dim.size for dim in info.tensor_shape.dim),
            tensor_name=info.name,
        )
        for name, info in sorted(tensors.items())
    }


def _is_callable(signature: Signature) -> bool:
    """False for the loader's own signatures, whose outputs are operations and not tensors."""
    return bool(signature.outputs) and all(":" in spec.tensor_name for spec in signature.outputs.values())
