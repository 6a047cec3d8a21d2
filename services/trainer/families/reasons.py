"""What went wrong, in one line a person can act on: the error's own words, the layer, and the place in their files."""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath

import tensorflow as tf

from common.errors import HeadraceError
from services.trainer.families.package_name import PACKAGE_PREFIX

_MAX_CHARS = 600
_TRACEBACK = "in user code:"
"""AutoGraph puts a traceback of its own into the message of what is raised while a graph is made."""
_NODE = re.compile(r"\{\{node (\S+?)\}\}")
_NOISE = re.compile(r"\s*\[\[\{\{.*?\}\}\]\]|\s*\[Op:[^\]]*\]|\{\{.*?\}\}|\x1b\[\d*m")
_FRAME = re.compile(r'^\s*File ".*", line \d+, in .*$', re.MULTILINE)
_ARGUMENTS = re.compile(r"\n\s*Arguments received by .*", re.DOTALL)
_NO_LAYERS = frozenset(
    {"while", "body", "cond", "gradient_tape", "StatefulPartitionedCall", "PartitionedCall", "Assert", "AssertGuard"}
)


class DefinitionFailedError(Exception):
    """The definition's own code raised, or returned what cannot be used; the message is one sentence."""


def describe(error: BaseException) -> str:
    """The error's last line (an error inside a graph: the operation's own message and layer), with the user's place."""
    if isinstance(error, SyntaxError) and error.filename and PACKAGE_PREFIX in error.filename:
        return f"{type(error).__name__}: {error.msg} ({PurePath(error.filename).name}, line {error.lineno})"
    if isinstance(error, tf.errors.OpError):
        return with_place(_of_operation(error), _trace_of(error, str(error.message))) + _advice(error, "")
    text = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, KeyError) and "\n" in str(
        error.args[:1] and error.args[0]
    ):  # Python shows a key, so a text with its escapes
        text = f"KeyError: {error.args[0]}"
    in_graph = _TRACEBACK in text
    text = _ARGUMENTS.sub("", text) if in_graph else text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = (_NOISE.sub("", lines[-1]) if in_graph else _first_sentence(lines))[:_MAX_CHARS]
    return with_place(last, text if in_graph else _trace_of(error, "")) + _advice(error, last)


@contextmanager
def blame_definition(path: str, *, doing: str = "") -> Iterator[None]:
    """Turns whatever the user's code raises into DefinitionFailedError: the file, what was being done, the reason."""
    try:
        yield
    except (MemoryError, tf.errors.ResourceExhaustedError, HeadraceError):
        raise
    except DefinitionFailedError as error:
        if not str(error).startswith(_TRACEBACK):
            raise
        sentence = (
            _ARGUMENTS.sub("", str(error)).strip().rpartition("\n")[2].strip().removeprefix(f"{type(error).__name__}: ")
        )
        raise type(error)(sentence) from error.__cause__
    except SystemExit as error:
        raise DefinitionFailedError(f"{path}: {doing}{': ' if doing else ''}it calls sys.exit({error.code})") from error
    except Exception as error:  # the user's code may raise anything
        raise DefinitionFailedError(f"{path}: {doing}{': ' if doing else ''}{describe(error)}") from error


def _first_sentence(lines: list[str]) -> str:
    """Keras says "Exception encountered when calling Lambda.call()." first and the reason a line below, or as the last
    of several, after "Error encountered:"."""
    sentence, rest = lines[0], lines[1:]
    if sentence.endswith("call().") and rest:
        sentence = f"{sentence} {_NOISE.sub('', rest.pop(0))}"
    if sentence.endswith("Error encountered:") and rest:
        sentence = f"{sentence} {_NOISE.sub('', rest[0])}"
    return sentence


def _advice(error: BaseException, sentence: str) -> str:
    """What to do about a fault that is made outside the definition's folder, where everything is beside the module."""
    if isinstance(error, ModuleNotFoundError):
        return (
            f". The trainer's environment has no {error.name}; a file of the definition is imported relatively: "
            f"from . import {str(error.name).rpartition('.')[2]}"
        )
    refused = (PermissionError, tf.errors.PermissionDeniedError)
    if isinstance(error, refused) or isinstance(getattr(error, "reason", None), refused):
        return (
            ". Rounds are confined (TRAINER_SANDBOX): TRAINER_SANDBOX_READ names further files that they may read, "
            "TRAINER_SANDBOX_PORTS further ports"
        )
    if isinstance(error, FileNotFoundError):
        return (
            ". A data file travels with the definition when model.yaml or a Python file of it names it, and "
            "lies beside the module: pathlib.Path(__file__).with_name(...)"
        )
    if "'untracked' resource" in sentence:
        return (
            " A table or variable that the model uses is an attribute of a layer, or of the model that build_model "
            "returns."
        )
    if "must be fully-defined" in sentence:
        return (
            ". Give preprocessing layers before it a fixed size: max_tokens with pad_to_max_tokens=True, num_bins, "
            "or a vocabulary"
        )
    if "is out of scope" in sentence:
        return (
            " A layer keeps a tensor of an earlier call: it may keep numbers and variables. Keras's Normalization of a "
            "known mean does so where it is built in a call: call its build(shape) in __init__"
        )
    if "on the FeatureSpace" in sentence:
        return (
            ". The network is made before there are events: what shall be fitted stands in the section features of "
            "model.yaml, whose features are inputs of their names"
        )
    if "learning rate is not settable" in sentence:
        return " The rate of model.yaml is a schedule: compile an optimizer in build_model"
    if re.search(r"path=\S*/mean, shape=\(\)", sentence):
        return (
            ". Keras adapts a layer for single numbers to an array, not to a Dataset: "
            'layer.adapt(numpy.concatenate([row["x"] for row in dataset]))'
        )
    return ""


def _of_operation(error: tf.errors.OpError) -> str:
    message = str(error.message)
    nodes = _NODE.findall(message)
    frames = list(_FRAME.finditer(message))  # a graph tells where each operation was made before it says what is wrong
    if frames:
        message = message[frames[-1].end() :]
    if "\nNode: " in message:
        message = message.rpartition("\nNode: ")[2].partition("\n")[2]
    message = _NOISE.sub("", _ARGUMENTS.sub("", message))
    message = re.sub(r"\s*Name: (?:<unknown>)?,?\s*$", "", message.strip())
    sentence = " ".join(line.strip() for line in message.splitlines() if line.strip())[:_MAX_CHARS]
    layer = layer_of(nodes[-1]) if nodes else ""
    return f"{sentence} (in {layer})" if layer else sentence


def layer_of(node: str) -> str:
    """ "network_1/dense_1/MatMul" to "network_1/dense_1": without the operation and the graph's own scopes."""
    parts = [part for part in node.split("/")[:-1] if re.sub(r"_\d+$", "", part) not in _NO_LAYERS]
    return "/".join(parts)


def _trace_of(error: BaseException, message: str) -> str:
    """All frames there are: of the error, of what caused it, and those that a graph or AutoGraph remembers."""
    rewritten = getattr(error, "ag_error_metadata", None)
    frames = [*traceback.format_tb(error.__traceback__), message, rewritten.get_message() if rewritten else ""]
    if error.__cause__ is not None:
        frames += traceback.format_tb(error.__cause__.__traceback__)
    return "".join(frames)


def with_place(sentence: str, trace: str) -> str:
    places = re.findall(rf'File "[^"]*{PACKAGE_PREFIX}[^"/]*/([^"]+)", line (\d+), in (\S+)', trace)
    if not places:
        return sentence
    file, line, function = places[-1]
    return f"{sentence} ({file}, line {line}, in {function})"
