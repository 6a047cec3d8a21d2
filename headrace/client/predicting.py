"""The client's calls that predict: in JSON's values, with arrays, or a body as it is.

`Client` inherits them.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from common.errors import InvalidInput
from headrace.client.bodies import JSON, encode, segment
from headrace.client.connection import Answer
from headrace.client.doors import Doors

if TYPE_CHECKING:
    from pandas import DataFrame

    from headrace.client.predictions import PredictionClient


class Predicting(Doors):
    """See above."""

    @property
    def predictions(self) -> "PredictionClient":
        """Predictions with arrays, over REST or gRPC, now or later (headrace/client/predictions.py). Needs numpy."""
        if self._predictions is None:
            from headrace.client.predictions import PredictionClient

            url = self._predictions_url or self._serving.url
            self._predictions = PredictionClient(
                url, timeout_seconds=self._timeout_seconds, token=self._token, ca_file=self.addresses.ca_file
            )
        return self._predictions

    def predict(
        self,
        model: str,
        *,
        instances: "Sequence[Any] | DataFrame | None" = None,
        inputs: Any = None,
        context: Mapping[str, Any] | None = None,
        version: int | None = None,
        label: str | None = None,
        signature_name: str = "",
        keys: Sequence[str | int] | None = None,
    ) -> Any:
        """Asks for predictions in JSON's values; rows (`instances` → a list of predictions) or columns (`inputs` →
        outputs). `predictions.predict` gives arrays and the version. Of a DataFrame's rows, columns that are no
        inputs of the signature are left out. The inputs of `context` are those of every row that does not name them.

        Without version and label the production version answers. Numpy arrays are fine as values.

        Args:
            keys: what each row is called, so that its label finds the prediction (docs/guide/watch.md).

        Raises:
            InvalidInput: the inputs do not fit the signature. NotFound: no such model or version is served.
            Overloaded: the queue is full.
        """
        if (instances is None) == (inputs is None):
            raise InvalidInput("predict takes either instances (rows) or inputs (columns)")
        if context is not None and instances is None:
            raise InvalidInput("a context is what instances share; inputs are columns")
        if hasattr(instances, "to_dict"):
            instances = self._instances_of(model, instances, signature_name, version, label)
        body: dict[str, Any] = {"instances": instances} if instances is not None else {"inputs": inputs}
        if context is not None:
            body["context"] = context
        if signature_name:
            body["signature_name"] = signature_name
        document = self.predict_raw(model, encode(body), version=version, label=label, keys=keys).json()
        return document["predictions"] if instances is not None else document["outputs"]

    def _instances_of(
        self, model: str, frame: Any, signature_name: str, version: int | None, label: str | None
    ) -> list[dict[str, Any]]:
        from headrace.files.row_files import Wanted, values_of_frame

        known = self.predictions.signature(model, signature_name, version=version, label=label)
        return values_of_frame(frame, Wanted(known.inputs, name_of=known.name_of, yes_no=known.yes_no))

    def predict_raw(
        self, model: str, body: bytes, *, version: int | None = None, label: str | None = None,
        keys: Sequence[str | int] | None = None,
    ) -> Answer:  # fmt: skip
        """Sends a request body of TensorFlow Serving's REST API as it is; the answer names its version."""
        if version is not None and label is not None:
            raise InvalidInput("predict takes a version or a label, not both")
        chosen = f"/versions/{version:d}" if version is not None else ""
        chosen = f"/labels/{segment(label)}" if label is not None else chosen
        path = f"/v1/models/{segment(model)}{chosen}:predict"
        headers = dict(JSON)
        if keys is not None:
            headers["X-Prediction-Key"] = ",".join(quote(str(key), safe="") for key in keys)
        return self._serving.call("POST", path, body, headers=headers, repeatable=True)

    def signatures(self, model: str) -> Mapping[str, Any]:
        """The live version's signatures by name, each with inputs, outputs and method_name, as TensorFlow Serving tells
        them. Raises NotFound: no version of the model is served."""
        document = self._serving.get(f"/v1/models/{segment(model)}/metadata")
        signatures: Mapping[str, Any] = document["metadata"]["signature_def"]["signature_def"]
        return signatures
