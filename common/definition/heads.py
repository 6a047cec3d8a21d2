"""What a model learns and answers: one head per question.

    label: late                    # the short form: one head, named after the label
    task: binary                   # modules, and estimators whose name says neither classifier nor regressor
    loss: {name: focal, gamma: 2}  # and any other key of a head

    heads:                         # the long form: a name for each head
      late: {label: late, task: binary, loss: focal, positive_weight: 3}
      delay: {label: delay, task: regression, loss: huber, weight: 0.1}

| task              | label of the stream                                             | the network gives         |
|-------------------|-----------------------------------------------------------------|---------------------------|
| binary            | int64 0 or 1, a word of two, or float32 from 0 to 1 (soft)      | a logit                   |
| multiclass        | int64 0..k-1, a word, or float32 [k], a distribution (soft)     | k logits                  |
| multilabel        | int64 or float32 [k] of 0 and 1, or a list of words or of ids   | k logits                  |
| regression        | a number                                                        | the prediction            |
| vector_regression | float32 or int64 [k]                                            | k predictions             |
| count             | a number from 0                                                 | the logarithm of the rate |
| quantiles         | a number                                                        | a prediction per level    |
| ranking           | a number from 0: how relevant, within the events of one `group` | a score                   |
| retrieval         | the feature that names the item (estimator two_tower alone)     | the item's rank           |
| embedding         | int64 or a word: who or what it is; for modules                 | a vector                  |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.definition.fields import Fields, is_number
from common.definition.losses import DEFAULT_LOSSES, TASKS, Loss, Task, read_loss
from common.errors import InvalidInput
from common.feature_keys import check_name

HEAD_KEYS = (
    "task", "loss", "weight", "classes", "class_weights", "positive_weight", "label_smoothing", "levels",
    "standardize", "group", "calibration",
)  # fmt: skip
"""Of a head beside `label`; in the short form they stand at the top of model.yaml."""
CLASSIFIERS: tuple[Task, ...] = ("binary", "multiclass", "multilabel")
CALIBRATIONS: Mapping[Task, tuple[str, ...]] = {
    "binary": ("temperature", "platt", "isotonic"),
    "multiclass": ("temperature",),
}
REGRESSORS: tuple[Task, ...] = ("regression", "vector_regression", "count", "quantiles")
_MAX_CLASSES = 100_000
_STANDARDIZED_TASKS: tuple[Task, ...] = ("regression", "vector_regression", "quantiles")
_STANDARDIZED_LOSSES = ("mean_squared_error", "mean_absolute_error", "huber", "log_cosh", "quantile")


@dataclass(frozen=True)
class Head:
    """Attributes:
    weight: of its loss in the sum; a head of weight 0 learns nothing and gives no gradient. All heads of a module may
        have it: it then learns by what its layers add to the loss.
    classes: of a multiclass head, or of the ids of a multilabel head; 0: by the label or the network.
    class_weights: factors of the losses of examples of a class, by class (its number or its word); 1 where none is.
    positive_weight: factor of the positive term of a cross-entropy.
    label_smoothing: share of a label that is spread evenly over all classes.
    levels: of a quantiles head, increasing.
    calibration: of a classifier, how its probabilities are corrected after training; empty: not at all.
    group: of a ranking head, the feature that says whose events are put in order.
    mean, deviation: of the label, as the definition says them: the network gives (label - mean) / deviation, and its
        loss is of that. Everything else is in units of the label.
    """

    name: str
    label: str
    task: Task
    loss: Loss
    weight: float = 1.0
    classes: int = 0
    class_weights: Mapping[str, float] = field(default_factory=dict)
    positive_weight: float | None = None
    label_smoothing: float = 0.0
    levels: tuple[float, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0
    group: str = ""
    calibration: str = ""

    @property
    def is_plain(self) -> bool:
        """The definition does not state how it is taught: a module that brings its own loss may do so."""
        plain = Head(self.name, self.label, self.task, Loss(DEFAULT_LOSSES[self.task]), classes=self.classes,
                     levels=self.levels, group=self.group, calibration=self.calibration)  # fmt: skip
        return self == plain


@dataclass(frozen=True)
class Teaching:
    """What the rest of the definition says of its heads.

    Attributes:
        tasks: that the estimator's name, or a module, allows; the first is the default where `has_default`.
        classes: parameters.classes of the short form; 0 where not given.
        loss: parameters.loss of the short form; empty where not given.
    """

    tasks: tuple[Task, ...] = TASKS
    has_default: bool = False
    is_estimator: bool = True
    classes: int = 0
    loss: str = ""


def teaching_of(estimator: str | None, *, classes: int = 0, loss: str = "") -> Teaching:
    if estimator is None:
        return Teaching(is_estimator=False)
    if estimator == "two_tower":
        return Teaching(("retrieval",), has_default=True, classes=classes)
    of_estimators = tuple(task for task in TASKS if task != "embedding")
    if estimator.endswith("_classifier"):
        return Teaching(CLASSIFIERS, has_default=True, classes=classes)
    if estimator.endswith("_regressor"):
        return Teaching(REGRESSORS, has_default=True, loss=loss)
    return Teaching(of_estimators, classes=classes)


def read_heads(fields: Fields, teaching: Teaching) -> tuple[Head, ...]:
    """From the top of model.yaml: `heads`, or `label` with the keys of its one head. Raises InvalidInput: which head,
    which key, what was expected."""
    if not fields.has("heads"):
        if not fields.has("label"):
            raise InvalidInput(
                "model.yaml needs label: a label of its stream; a module that learns without labels names the feature "
                "that it gives back, or is measured by"
            )
        label = fields.text("label")
        return (_head(fields, label, label, teaching, place="model.yaml"),)
    repeated = [key for key in ("label", *HEAD_KEYS) if fields.has(key)]
    if repeated:
        raise InvalidInput(f"model.yaml has heads and {', '.join(repeated)} beside it; each head says that itself")
    if teaching.classes or teaching.loss:
        key = "classes" if teaching.classes else "loss"
        raise InvalidInput(f"parameters: {key} is of a model with one label; with heads, each head says {key} itself")
    section = fields.take("heads")
    if not isinstance(section, Mapping) or not section:
        raise InvalidInput(f"heads must be a mapping of names to heads, got {section!r}")
    heads = tuple(_named_head(name, item, teaching) for name, item in section.items())
    if teaching.is_estimator and not any(head.weight for head in heads):
        raise InvalidInput("heads: every weight is 0, so nothing would be learned; give one head a weight above 0")
    return heads


def _named_head(name: object, section: object, teaching: Teaching) -> Head:
    place = f"head {check_name('head', name)}"
    fields = Fields(place, section)
    fields.expect(("label", *HEAD_KEYS))
    head = _head(fields, str(name), fields.text("label", name), teaching, place=place)
    fields.finish()
    return head


def _head(fields: Fields, name: str, label: str, teaching: Teaching, *, place: str) -> Head:
    classes = teaching.classes
    if fields.has("classes"):
        if classes:
            raise InvalidInput(f"{place} has classes, and so has parameters; say it once")
        classes = fields.integer("classes", minimum=2, maximum=_MAX_CLASSES)
    task = _task(fields, teaching, classes, place)
    _refuse_classes(task, teaching, classes, place)
    loss = _loss(fields, teaching, task, place)
    mean, deviation = _standardized(fields, teaching, task, loss, place)
    head = Head(
        name=name,
        label=label,
        task=task,
        loss=loss,
        weight=fields.number("weight", Head.weight, minimum=0.0),
        classes=classes if task in ("multiclass", "multilabel") else 0,
        class_weights=_class_weights(fields, task, place),
        positive_weight=_positive_weight(fields, task, loss, place),
        label_smoothing=_label_smoothing(fields, loss, place),
        levels=_levels(fields, task, place),
        mean=mean,
        deviation=deviation,
        group=_group(fields, task, place),
        calibration=_calibration(fields, task, place),
    )
    if fields.where == place and place == "model.yaml" and not head.weight and teaching.is_estimator:
        raise InvalidInput("model.yaml: weight 0 of the only head leaves nothing to learn")
    return head


def _task(fields: Fields, teaching: Teaching, classes: int, place: str) -> Task:
    default = "multiclass" if classes > 2 and "multiclass" in teaching.tasks else teaching.tasks[0]
    known = tuple(dict.fromkeys((*TASKS, *teaching.tasks)))
    task = fields.choice("task", known, default) if teaching.has_default else fields.choice("task", known)
    if task not in teaching.tasks:
        raise InvalidInput(
            f"{place}: task {task} is none of the estimator's ({', '.join(teaching.tasks)}); an estimator whose name "
            f"ends in neither _classifier nor _regressor (linear, dnn, wide_deep) takes heads of every task"
        )
    return task


def _refuse_classes(task: Task, teaching: Teaching, classes: int, place: str) -> None:
    if not classes:
        return
    if task == "binary" and classes > 2:
        raise InvalidInput(f"{place}: classes is {classes}, and task binary has two; say task: multiclass")
    if task not in CLASSIFIERS:
        raise InvalidInput(f"{place}: classes does not go with task {task}; leave it out")
    if not teaching.is_estimator and task == "multiclass":
        raise InvalidInput(f"{place}: the module's last layer gives the classes; leave classes out")


def _loss(fields: Fields, teaching: Teaching, task: Task, place: str) -> Loss:
    section = fields.take("loss", None)
    if section is not None and teaching.loss:
        raise InvalidInput(f"{place} has loss, and so has parameters; say it once")
    if section is None and teaching.loss:
        return read_loss(teaching.loss, task, "parameters")
    return Loss(DEFAULT_LOSSES[task]) if section is None else read_loss(section, task, place)


def _class_weights(fields: Fields, task: Task, place: str) -> dict[str, float]:
    section = fields.take("class_weights", {})
    if not isinstance(section, Mapping):
        raise InvalidInput(f"{place}: class_weights must be a mapping of classes to factors, got {section!r}")
    if section and task not in ("binary", "multiclass"):
        raise InvalidInput(f"{place}: class_weights needs classes, and task {task} has none that exclude each other")
    for key, factor in section.items():
        if isinstance(key, bool) or not isinstance(key, int | str):
            raise InvalidInput(f"{place}: class_weights: {key!r} is no class; a class is its number or its word")
        if not is_number(factor) or factor < 0:
            raise InvalidInput(f"{place}: class_weights: {key} must be a number from 0, got {factor!r}")
    return {str(key): float(factor) for key, factor in section.items()}


def _positive_weight(fields: Fields, task: Task, loss: Loss, place: str) -> float | None:
    factor = fields.optional_number("positive_weight", None, minimum=0.0)
    if factor is not None and loss.name != "binary_crossentropy":
        raise InvalidInput(
            f"{place}: positive_weight is a factor in binary_crossentropy (tasks binary, multilabel); this head is "
            f"{task} with {loss.name}"
        )
    return factor


def _label_smoothing(fields: Fields, loss: Loss, place: str) -> float:
    share = fields.number("label_smoothing", Head.label_smoothing, minimum=0.0, below=1.0)
    if share and not loss.kind.can_smooth:
        raise InvalidInput(f"{place}: label_smoothing softens classes, and loss {loss.name} is no cross-entropy")
    return share


def _levels(fields: Fields, task: Task, place: str) -> tuple[float, ...]:
    if task != "quantiles":
        if fields.has("levels"):
            raise InvalidInput(f"{place}: levels belongs to task quantiles, this head is {task}")
        fields.take("levels", None)
        return ()
    levels = fields.numbers("levels")
    if not all(0.0 < level < 1.0 for level in levels) or list(levels) != sorted(set(levels)):
        raise InvalidInput(f"{place}: levels must increase, each above 0 and below 1, got {list(levels)}")
    return levels


def _calibration(fields: Fields, task: Task, place: str) -> str:
    kind = fields.take("calibration", None)
    if kind is None:
        return ""
    known = CALIBRATIONS.get(task, ())
    if kind not in known:
        raise InvalidInput(
            f"{place}: calibration of a {task} head must be {' or '.join(known) or 'left out'}, got {kind!r}"
        )
    return str(kind)


def _group(fields: Fields, task: Task, place: str) -> str:
    if task == "ranking":
        return fields.text("group")
    if fields.has("group"):
        raise InvalidInput(f"{place}: group belongs to task ranking, this head is {task}")
    fields.take("group", None)
    return ""


def _standardized(fields: Fields, teaching: Teaching, task: Task, loss: Loss, place: str) -> tuple[float, float]:
    if not fields.has("standardize"):
        fields.take("standardize", None)
        return Head.mean, Head.deviation
    values = fields.numbers("standardize")
    if len(values) != 2 or values[1] <= 0:
        raise InvalidInput(f"{place}: standardize must be [mean, deviation], deviation above 0, got {list(values)}")
    if not teaching.is_estimator or task not in _STANDARDIZED_TASKS or loss.name not in _STANDARDIZED_LOSSES:
        raise InvalidInput(
            f"{place}: standardize is for estimators with task {', '.join(_STANDARDIZED_TASKS)} and loss "
            f"{', '.join(_STANDARDIZED_LOSSES)}; this head is {task} with {loss.name}"
            f"{'' if teaching.is_estimator else ' of a module, which scales its output itself'}"
        )
    return values[0], values[1]
