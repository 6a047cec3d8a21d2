"""Writes a trained model as a SavedModel that any TensorFlow loads, and has another process check its answers.

    serving_default     inputs: the raw features by name, [n, ...] in the schema's dtypes (any length: padded)
    serving_examples    input `examples`: string [n], serialized tf.train.Example; absent optional features get the
                        schema's default
    outputs of both     services/trainer/families/heads.py
    serving_with_context  `export: context`: as serving_default, of one row of these features for all rows of the others
    others              what the family answers besides (families/port.py: signatures)
    classification      for TensorFlow Serving's classify and regress, as far as the task has them
    regression          (services/trainer/export/signatures.py); input `inputs`: serialized Examples

    assets.extra/       tf_serving_warmup_requests: requests that a server replays before it says that it is ready
                        headrace_serving.json: what model.yaml says under `serving`, if anything
                        headrace_inputs.json: what the schema says of the raw inputs (common/definition/inputs.py)
                        files/: of the definition, `export: assets` and those of vocabularies, as they are

The warm-up requests hold real examples of the round; `export: {warmup_requests: 0}` in model.yaml leaves them out.

saved_model.pb follows from the definition and its code alone: what rounds learn and fit (words, statistics, weights) is
in variables/. A module's lookup tables travel with the graph.
"""

import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from common.definition.inputs import INPUTS_PATH, SignatureInputs
from common.definition.serving import OPTIONS_PATH
from common.eventlog.tfrecord import frame
from common.saved_model.calls import Calls
from common.saved_model.graph import MODEL_FILE, GraphProto, read, signatures_of, tagged
from common.saved_model.layout import OWN_OPERATIONS_FILE
from common.saved_model.operations import faults_of
from common.whole_files import write_whole
from protos import tfserving_pb2, warmup_pb2
from services.trainer.export import signatures as by_method
from services.trainer.export.answers import TOLERANCES
from services.trainer.export.arrays import Arrays, fill
from services.trainer.export.canonical import canonicalise
from services.trainer.export.fresh_process import FreshProcess
from services.trainer.export.row_dependence import by_neighbours
from services.trainer.families.port import Model, Signature
from services.trainer.families.reasons import DefinitionFailedError, blame_definition
from services.trainer.features.decoding import decoded
from services.trainer.features.parsing import parse, parse_in_graph, tensor_spec

RAW_SIGNATURE, EXAMPLES_SIGNATURE = "serving_default", "serving_examples"
_VISIBLE = 1e-3
"""What an answer may differ by, relative and absolute, from one batch to another."""
_NO_IDENTIFIER = re.compile(r"[^A-Za-z0-9_]")
ASSETS = Path("assets.extra/files")
WARMUP_PATH = Path("assets.extra/tf_serving_warmup_requests")


def export(model: Model, directory: Path) -> Any:
    """Writes saved_model.pb, variables/ and what goes with them into `directory`, which must not hold them yet.

    Returns:
        What answers raw features, as a concrete function.
    """
    module = tf.Module(name="model")
    module.exported = model.exported
    signatures = {name: _graph_of(signature) for name, signature in model.signatures().items()}
    names = {name: _names_in_graph(signature) for name, signature in model.signatures().items()}
    answer, named = signatures[RAW_SIGNATURE], names[RAW_SIGNATURE]

    def by_features(**raw: Any) -> Any:
        return answer(**{named[name]: tensor for name, tensor in raw.items()})

    by_examples = tf.function(
        lambda examples: by_features(**parse_in_graph(examples, model.inputs)), autograph=False
    ).get_concrete_function(tf.TensorSpec([None], tf.string, name="examples"))
    signatures[EXAMPLES_SIGNATURE] = by_examples
    words = _class_words(model)
    for name in by_method.names_for(_of_first_head(model, answer.structured_outputs)):
        signatures[name] = tf.function(
            lambda inputs, name=name: by_method.answers_by_examples(_of_first_head(model, by_examples(inputs)), words)[
                name
            ],
            autograph=False,
        ).get_concrete_function(tf.TensorSpec([None], tf.string, name=by_method.INPUTS))
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    tf.saved_model.save(module, str(directory), signatures=signatures, options=options)
    _finish(directory / MODEL_FILE, names)
    (directory / "fingerprint.pb").unlink(missing_ok=True)
    _write_inputs(model, directory)
    _write_extra(model, directory)
    return answer


def _finish(path: Path, names: Mapping[str, Mapping[str, str]]) -> None:
    """Rewrites saved_model.pb in place. `names`: by signature, what its inputs are called to the arguments' names."""
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for graph in model.meta_graphs:
        by_method.name_methods(graph)
        by_method.name_inputs(graph, names)
        canonicalise(graph)
    path.write_bytes(model.SerializeToString(deterministic=True))


def _graph_of(signature: Signature) -> Any:
    names = _names_in_graph(signature)
    function = tf.function(
        lambda **raw: signature.answer(decoded({name: raw[names[name]] for name in names}, signature.inputs)),
        autograph=False,
    )
    specs = {
        names[tensor.name]: tensor_spec(tensor, rows=1 if tensor.name in signature.context else None)
        for tensor in signature.inputs
    }
    return function.get_concrete_function(**{name: tf.TensorSpec.from_spec(spec, name) for name, spec in specs.items()})


def _names_in_graph(signature: Signature) -> dict[str, str]:
    """Features to the arguments of their signature: what no argument in Python, or no node beside the others, can be
    called has another name there, which tf.saved_model.load shows; servers see the features' own
    (signatures.name_inputs). TensorFlow's graphs take names that differ in capitals only for one."""
    features = [feature.name for feature in signature.inputs]
    names: dict[str, str] = {}
    taken: set[str] = set()
    for name in sorted(features, key=lambda name: not _is_argument(name)):
        argument = _NO_IDENTIFIER.sub("_", name)
        argument = argument if argument[0] != "_" else f"feature{argument}"
        while argument.lower() in taken or not _is_argument(argument):
            argument += "_"
        names[name] = argument
        taken.add(argument.lower())
    return names


def _is_argument(name: str) -> bool:
    return name.isidentifier() and name != "self" and not iskeyword(name) and name[0] != "_"


def _class_words(model: Model) -> Sequence[str]:
    """The label's vocabulary; empty where its classes are numbers."""
    return model.heads[0].label.vocabulary if model.heads else ()


def _words_by_output(model: Model) -> dict[str, tuple[str, ...]]:
    """The words of each head's classes, by the output that says which."""
    outputs = {"multiclass": "class_id", "binary": "probability"}
    return {
        outputs[head.task] if len(model.heads) == 1 else f"{head.name}/{outputs[head.task]}": head.label.vocabulary
        for head in model.heads
        if head.task in outputs and head.label.vocabulary
    }


def _of_first_head(model: Model, served: Mapping[str, Any]) -> dict[str, Any]:
    """What it serves, without its name; of a model without heads nothing."""
    if len(model.heads) == 1:
        return dict(served)
    prefix = f"{model.heads[0].name}/" if model.heads else "/"
    return {name.removeprefix(prefix): output for name, output in served.items() if name.startswith(prefix)}


def _write_inputs(model: Model, directory: Path) -> None:
    described = {
        name: SignatureInputs(
            signature.inputs,
            {
                feature.name: model.padding[feature.name]
                for feature in signature.inputs
                if feature.name in model.padding
            },
            _words_by_output(model) if name == RAW_SIGNATURE else {},
        ).to_mapping()
        for name, signature in model.signatures().items()
    }
    _write_json(directory / INPUTS_PATH, described)


def _write_extra(model: Model, directory: Path) -> None:
    for name, content in model.definition.assets.items():
        write_whole(directory / ASSETS / name, content, flush=False)
    if options := model.definition.serving.to_mapping():
        _write_json(directory / OPTIONS_PATH, options)


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(document, sort_keys=True).encode() + b"\n", flush=False)


@dataclass(frozen=True)
class Trial:
    """Requests made of a few of the round's examples, and the model's own answers to them, in the same order.

    `together`, `alone`: its outputs of all of these examples, and of each by itself.
    """

    requests: list[warmup_pb2.PredictionLog]
    answers: list[tfserving_pb2.PredictResponse]
    together: Arrays
    alone: list[Arrays]


def trial_of(model: Model, examples: Sequence[bytes]) -> Trial:
    """The first example alone, all together, the others alone, each for every signature of the family; all together
    for classify and regress.

    An example alone is sent as a client sends it: a list of any length has its own length, without padding. Raises
    DefinitionFailedError: the model cannot answer one of them."""
    answers = []
    together: Arrays = {}
    alone: list[Arrays] = []
    by_methods: dict[str, dict[str, tf.Tensor]] = {}
    signatures = model.signatures()
    for part in _parts(examples):
        raw = parse(part, model.schema.columns).raw
        for name, signature in signatures.items():
            given = signature.given(raw)
            inputs = {name: values.numpy() for name, values in given.items()}
            with blame_definition(model.definition.module or "the estimator", doing=f"answering {_in_words(inputs)}"):
                answered = signature.answer(decoded(given, signature.inputs))
                outputs = {output: value.numpy() for output, value in answered.items()}
            answers.append(_predict_response(outputs))
            if name == RAW_SIGNATURE:
                answers.append(_predict_response(outputs))
                if len(part) == 1:
                    alone.append(outputs)
                if len(part) == len(examples):
                    together = outputs
                    served = {output: tf.constant(value) for output, value in outputs.items()}
                    by_methods = by_method.answers_by_examples(_of_first_head(model, served), _class_words(model))
    answers += [
        _predict_response({name: output.numpy() for name, output in answered.items()})
        for answered in by_methods.values()
    ]
    return Trial(requests_of(model, examples, by_methods), answers, together, alone)


def requests_of(model: Model, examples: Sequence[bytes], names: Container[str]) -> list[warmup_pb2.PredictionLog]:
    """Those of a trial, without asking the model. `names`: of the export's signatures."""
    requests = []
    signatures = model.signatures()
    for part in _parts(examples):
        raw = parse(part, model.schema.columns).raw
        for name, signature in signatures.items():
            inputs = {name: values.numpy() for name, values in signature.given(raw).items()}
            requests.append(_predict_request(name, inputs))
            if name == RAW_SIGNATURE:
                requests.append(_predict_request(EXAMPLES_SIGNATURE, {"examples": np.array(part, object)}))
    methods = [method for method in (by_method.CLASSIFICATION, by_method.REGRESSION) if method in names]
    together = {by_method.INPUTS: np.array(list(examples), object)}
    return requests + [_predict_request(method, together) for method in methods]


def _parts(examples: Sequence[bytes]) -> list[list[bytes]]:
    parts = [[examples[0]], list(examples), *([example] for example in examples[1:])]
    return parts[: len(parts) if len(examples) > 1 else 1]


def write_warmup_requests(model: Model, directory: Path, requests: Sequence[warmup_pb2.PredictionLog]) -> None:
    """Writes TensorFlow Serving's warm-up file beside an export: as many requests as the definition allows.

    The same examples give the same bytes.
    """
    wanted = requests[: model.definition.export.warmup_requests]
    if wanted:
        _write_records(directory / WARMUP_PATH, wanted)


def check(
    directory: Path, trial: Trial, fresh: FreshProcess, work_dir: Path, *, program: str = "",
    latency: Path | None = None,
) -> dict[str, str]:  # fmt: skip
    """Has a process that knows nothing of the model load the export and answer what the model answered.

    Args:
        program: its digest, where further exports of it are to be checked without loading it anew.
        latency: gets how fast it answers there (answers.py).

    Returns:
        Warnings of a version, by what they are about.

    Raises:
        DefinitionFailedError: it cannot be loaded there, or an answer differs.
        Unavailable: the process is gone.
    """
    graph = tagged(read((directory / MODEL_FILE).read_bytes()))
    _refuse_operations(graph, has_own_operations=(directory / OWN_OPERATIONS_FILE).is_file())
    requests, answers = work_dir / "trial" / "requests", work_dir / "trial" / "answers"
    _write_records(requests, trial.requests)
    _write_records(answers, trial.answers)
    precision = _precision_of(graph)
    problem = fresh.request(directory, requests, answers, precision=precision, program=program, latency=latency)
    if problem:
        raise DefinitionFailedError(problem)
    mixed = by_neighbours(trial.together, trial.alone, max(_VISIBLE, TOLERANCES[precision]))
    return ({"answers in a batch": mixed} if mixed else {}) | _without_rows(graph)


def _without_rows(graph: GraphProto) -> dict[str, str]:
    """A warning where an answer by rows cannot be cut out of what is served."""
    outputs = signatures_of(graph)[tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY].outputs
    single = [name for name, tensor in outputs.items() if tensor.shape == ()]
    warning = "one number for all examples: requests by rows (instances) are refused, ones by columns (inputs) answered"
    return {f"output {', '.join(single)}": warning} if single else {}


def _refuse_operations(graph: GraphProto, *, has_own_operations: bool) -> None:
    """Raises DefinitionFailedError where the export cannot work, or must not, on another machine."""
    fault = next(faults_of(graph, has_own_operations=has_own_operations), "")
    if fault:
        raise DefinitionFailedError(f"the model cannot be served: {fault}")


def _precision_of(graph: GraphProto) -> str:
    """The coarsest that anything in it computes in, of answers.TOLERANCES: a layer may have a dtype of its own."""
    found = {node.attr["T"].type for _, node in Calls(graph).nodes() if "T" in node.attr}
    return next((name for name in ("bfloat16", "float16") if tf.as_dtype(name).as_datatype_enum in found), "float32")


def _write_records(path: Path, messages: Sequence[warmup_pb2.PredictionLog | tfserving_pb2.PredictResponse]) -> None:
    write_whole(path, frame([message.SerializeToString(deterministic=True) for message in messages]), flush=False)


def _predict_request(signature: str, inputs: Arrays) -> warmup_pb2.PredictionLog:
    log = warmup_pb2.PredictionLog()
    request = log.predict_log.request
    request.model_spec.signature_name = signature
    fill(request.inputs, inputs)
    return log


def _predict_response(outputs: Arrays) -> tfserving_pb2.PredictResponse:
    response = tfserving_pb2.PredictResponse()
    fill(response.outputs, outputs)
    return response


def _in_words(inputs: Arrays) -> str:
    shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in inputs.items())
    return f"a request with inputs {shapes}"
