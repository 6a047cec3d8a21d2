"""Steps as TensorFlow 1 took them (`training.execution: session`): a graph with placeholders, run by a session.

The graph is the one that `graph` compiles. What it captures, the network's and the optimizer's variables, becomes
variables of the session; they take their values before each call, and give them back after it.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from services.trainer.families.port import Losses
from services.trainer.families.reasons import DefinitionFailedError


class SessionRun:
    """Takes what the function takes; returns its result as an array.

    Args:
        function: with one signature, of tensors.
        name: of the definition's code, for what is refused.

    Raises:
        DefinitionFailedError: the graph holds a table or another resource that is no variable.
    """

    def __init__(self, function: Any, name: str) -> None:
        concrete = function.get_concrete_function()
        known = {id(variable.handle): variable for variable in concrete.variables}
        self._variables: list[tuple[tf.Variable, Any, tf.Operation, tf.Tensor]] = []
        threads = tf.config.threading
        with tf.Graph().as_default() as graph:
            taken = concrete.inputs[: len(concrete.inputs) - len(concrete.captured_inputs)]
            self._fed = [tf.compat.v1.placeholder(tensor.dtype, tensor.shape) for tensor in taken]
            held = [self._held(known, value, name) for value in concrete.captured_inputs]
            replaced = dict(zip([tensor.name for tensor in concrete.inputs], [*self._fed, *held], strict=True))
            wanted = [*concrete.outputs, *concrete.graph.control_outputs]
            self._wanted = tf.graph_util.import_graph_def(
                concrete.graph.as_graph_def(), replaced, [tensor.name for tensor in wanted], name="steps"
            )
        options = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=threads.get_intra_op_parallelism_threads(),
            inter_op_parallelism_threads=threads.get_inter_op_parallelism_threads(),
        )
        self._session = tf.compat.v1.Session(graph=graph, config=options)

    def __call__(self, *arguments: Any) -> Losses:
        fed = tf.nest.flatten(arguments, expand_composites=True)
        given = {place: variable.numpy() for variable, place, _, _ in self._variables}
        self._session.run([assign for _, _, assign, _ in self._variables], given)
        result, *_ = self._session.run(
            self._wanted, dict(zip(self._fed, [tensor.numpy() for tensor in fed], strict=True))
        )
        values = self._session.run([read for _, _, _, read in self._variables])
        for (variable, *_), value in zip(self._variables, values, strict=True):
            variable.assign(value)
        return np.asarray(result)

    def _held(self, known: dict[int, tf.Variable], value: Any, name: str) -> tf.Tensor:
        """In the session's graph, what the function has captured."""
        if value.dtype != tf.resource:
            return tf.constant(value.numpy())
        variable = known.get(id(value))
        if variable is None:
            raise DefinitionFailedError(
                f"{name}: training.execution is session, which carries variables, and the steps use a table or another "
                f"resource; say graph"
            )
        about = {"dtype": variable.dtype, "shape": variable.shape}
        handle = tf.raw_ops.VarHandleOp(**about, shared_name=f"variable_{len(self._variables)}")
        place = tf.compat.v1.placeholder(**about)
        assign = tf.raw_ops.AssignVariableOp(resource=handle, value=place)
        read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype)
        self._variables.append((variable, place, assign, read))
        return handle
