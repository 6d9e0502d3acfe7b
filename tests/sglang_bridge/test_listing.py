"""The list of SGLang's and Switchrail's hooks on SGLang's modules, with stand-ins for these modules."""

import logging
from importlib import import_module

from switchrail.bridges.sglang.listing import hooks


def double(result, *_, **__):
    return result


def test_hooks_of_both_systems_are_listed_and_logged(runtime, version, caplog):
    registry = import_module("sglang.srt.plugins.hook_registry")
    target = "sglang.srt.layers.attention.attention_registry.register_attention_backend"
    source = registry.HookSource("counter", "counting-plugin")
    registry.HookRegistry.register(target, double, source=source)
    registry.HookRegistry.register(target, double, registry.HookType.BEFORE)
    runtime.hooks.add(target, double, "after", source="vendor")
    found = [hook for hook in hooks(runtime) if hook.target == target]
    assert found == [
        (target, "after", "counting-plugin", "sglang"),
        (target, "after", "vendor", "switchrail"),
        (target, "before", "unknown", "sglang"),
    ]
    own = [hook for hook in hooks(runtime) if hook.source == "switchrail"]
    assert any(hook.target.endswith("GDNAttnBackend.__init__") for hook in own)
    with caplog.at_level(logging.INFO, logger="switchrail"):
        runner = import_module("sglang.srt.model_executor.model_runner").ModelRunner()
        getattr(runner, "init_attention_backend" + ("s" if version == "v23" else ""))()
    assert f"{target}: `after` hook of counting-plugin, registered with sglang" in caplog.text
    assert "GDNAttnBackend" not in caplog.text
