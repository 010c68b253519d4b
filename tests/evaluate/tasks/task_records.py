"""A record of two tasks on two models, with made-up figures."""

import json
from typing import Any

from grasp_deploy.checkpoint.footprint import footprint
from grasp_deploy.checkpoint.format.shapes import model_shape
from grasp_deploy.files.record import new_record
from tests.tiny import tiny_config

RIGHT = {"dense": [1, 1, 1, 0], "pruned": [1, 0, 1, 0]}


def task_record(**changes: Any) -> dict[str, Any]:
    """Both models on piqa and winogrande, four items each; `changes` go into every cell."""
    config = json.loads(json.dumps(tiny_config("llama").to_dict()))
    size = footprint(model_shape({**config, "dtype": "float32"})).as_dict()
    models = [{"name": name, "footprint": size, "weight_hashes": {}} for name in RIGHT]
    cells = [
        {
            "model": name,
            "task": task,
            "metric": metric,
            "accuracy": sum(right) / 4,
            "standard_error": 0.1,
            "metrics": {},
            "num_fewshot": 0,
            "truncated": 0,
            "prompts_sha256": "0",
            "items": [{"item": i, metric: float(r)} for i, r in enumerate(right)],
            **changes,
        }
        for name, right in RIGHT.items()
        for task, metric in (("piqa", "acc_norm"), ("winogrande", "acc"))
    ]
    return new_record("tasks", [], {}, models=models, cells=cells)
