# mypy: ignore-errors
"""The service that a team writes itself: FastAPI and uvicorn, one process, no batching."""

import model
import numpy as np
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
predict = model.load()


class Request(BaseModel):
    instances: list[list[float]]


@app.post("/predict")
async def answer(request: Request):
    return {"predictions": predict(np.asarray(request.instances, np.float32)).tolist()}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=model.PORT, loop="uvloop", http="httptools", log_level="warning")
