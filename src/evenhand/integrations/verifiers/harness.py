"""A harness that fetches nothing: verifiers' own chat program, run by this interpreter."""

from __future__ import annotations

import sys
from typing import Any

from verifiers.v1.harnesses.null import NullHarness


class Here(NullHarness):  # type: ignore[misc]
    """The null harness without `uv`, which would build the program an environment from the network:
    all that the program imports is installed beside verifiers. For a subprocess runtime alone."""

    async def setup(self, runtime: Any) -> None:
        """Nothing to prepare."""

    async def launch(self, ctx: Any, trace: Any, runtime: Any, *rest: Any, **more: Any) -> Any:
        """As the null harness's, in this interpreter."""
        return await super().launch(ctx, trace, _Interpreter(runtime), *rest, **more)


class _Interpreter:
    """A runtime that runs scripts by the interpreter that runs this."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    async def prepare_uv_script(self, script: str, *_: Any, **__: Any) -> list[str]:
        """The script in the runtime's own folder, and how to run it."""
        await self._runtime.write("program.py", script.encode())
        return [sys.executable, "program.py"]
