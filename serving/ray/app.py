"""Ray Serve: a dense model and its pruned copy behind one OpenAI endpoint, with a traffic split.

    serve run serving.ray.app:build dense=DIR pruned=DIR share=0.5

Requests for the models `dense` and `pruned` go where they name. Those for `model` go to the pruned
copy with the probability `share`, and to the dense model otherwise; the reply names who answered.
"""

import random
from pathlib import Path
from typing import Any

from fastapi import Request
from pydantic import BaseModel, Field, Json
from ray.serve import Application
from ray.serve.llm import LLMConfig, build_openai_app
from ray.serve.llm.ingress import OpenAiIngress
from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest
from starlette.responses import Response

from grasp_deploy.checkpoint.limits import installed_platform
from grasp_deploy.engine.flags import read_flags
from grasp_deploy.engine.serve import check_model, own_flags

COMMON = "model"


class Settings(BaseModel, extra="forbid"):
    """Arguments of the app, from `serve run` or from a config file's `args`."""

    dense: Path
    pruned: Path
    share: float = Field(0.5, ge=0, le=1)  # of the pruned copy, in requests for `model`
    min_replicas: int = 1
    max_replicas: int = 4
    target_ongoing_requests: float = 8  # for each replica: above it one more is started
    upscale_delay_s: float = 30
    downscale_delay_s: float = 600
    engine: dict[str, Any] | Json[dict[str, Any]] = {}  # arguments for vLLM, and they win


class SplitIngress(OpenAiIngress):
    """Ray's OpenAI endpoints, and one more model name that stands for either model."""

    share = 0.5

    def reconfigure(self, user_config: dict[str, float]) -> None:
        """Take a new share without a restart; Serve calls this."""
        share = user_config["share"]
        if not 0 <= share <= 1:
            raise ValueError(f"share {share} is not between 0 and 1")
        self.share = share

    def choose(self, model: str | None) -> str | None:
        """The model that answers a request for this one."""
        if model not in (None, COMMON):
            return model
        return "pruned" if random.random() < self.share else "dense"

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        """Answer /v1/completions."""
        body.model = self.choose(body.model)
        return await super().completions(body, request)

    async def chat(self, body: ChatCompletionRequest, request: Request) -> Response:
        """Answer /v1/chat/completions."""
        body.model = self.choose(body.model)
        return await super().chat(body, request)


def model_config(name: str, folder: Path, settings: Settings) -> LLMConfig:
    """Check a folder, and make what Ray needs to serve it. Raises InputError."""
    platform, flags = installed_platform(), read_flags(spelled(settings.engine))
    check_model(folder, flags, platform)
    own = own_flags(folder, flags, platform, servers=2)  # which start at once
    pairs = zip(own[::2], own[1::2], strict=True)
    added = {name[2:].replace("-", "_"): int(v) if v.isdecimal() else v for name, v in pairs}
    engine = {**added, **settings.engine}
    # What is left is named as Ray names it.
    scaling = settings.model_dump(exclude={"dense", "pruned", "share", "engine"})
    return LLMConfig(
        model_loading_config={"model_id": name, "model_source": str(folder.resolve())},
        accelerator_config={"kind": "cpu" if platform == "cpu" else "gpu"},
        engine_kwargs=engine,
        deployment_config={
            "autoscaling_config": scaling,
            "max_surge_percent": 100,  # a new checkpoint is up before an old replica goes
        },
    )


def spelled(engine: dict[str, Any]) -> list[str]:
    """Arguments for vLLM as the flags of its command."""
    return [
        f"--{'' if value else 'no-'}{name}" if isinstance(value, bool) else f"--{name}={value}"
        for name, value in engine.items()
        if value is not None
    ]


def build(settings: Settings) -> Application:
    """The app: both models, and the split in front of them."""
    folders = {"dense": settings.dense, "pruned": settings.pruned}
    return build_openai_app(
        {
            "llm_configs": [model_config(*pair, settings) for pair in folders.items()],
            "ingress_cls_config": {"ingress_cls": SplitIngress},
            "ingress_deployment_config": {
                "user_config": {"share": settings.share},
                "max_surge_percent": 100,
            },
        }
    )
