import pytest

torch = pytest.importorskip("torch")


def scaled(x, scale=2.0, *, bias=0.0):
    return x * scale + bias


def outer(x):
    return scaled(x, bias=1.0) - 1


@pytest.mark.parametrize("hooked", ["before compiling", "after compiling"])
def test_full_graph_through_hooks(hooks, hooked):
    torch._dynamo.reset()
    compiled = torch.compile(outer, fullgraph=True, backend="eager")
    x = torch.arange(3.0)
    if hooked == "after compiling":
        assert compiled(x).tolist() == [0.0, 2.0, 4.0]
    hooks.add(scaled, lambda x, scale, *, bias: ((x + 1, scale), {"bias": bias}))
    hooks.add(scaled, lambda original, *args, **kwargs: original(*args, **kwargs) * 10, "around")
    hooks.add(scaled, lambda original, *args, **kwargs: original(*args, **kwargs) + 3, "around")
    hooks.add(scaled, lambda result, *args, **kwargs: result * 2, "after")
    assert outer(x).tolist() == [119.0, 159.0, 199.0]
    assert compiled(x).tolist() == [119.0, 159.0, 199.0]
    hooks.clear()
    assert compiled(x).tolist() == [0.0, 2.0, 4.0]


def test_a_module_whose_class_is_replaced(hooks):
    """Its `super()` is found by frame, which breaks the graph there and nothing else."""

    class Scale(torch.nn.Module):
        def forward(self, x):
            return x * 2

    class Shifted(Scale):
        def forward(self, x):
            return super().forward(x) + 1

    torch._dynamo.reset()
    module, x = Scale(), torch.ones(2)
    compiled = torch.compile(module, backend="eager")
    assert compiled(x).tolist() == [2.0, 2.0]
    hooks.add(Scale, Shifted, "replace")
    assert module(x).tolist() == compiled(x).tolist() == [3.0, 3.0]
    hooks.add(Scale.forward, lambda result, self, x: result * 10, "after")
    assert module(x).tolist() == compiled(x).tolist() == [30.0, 30.0]
    hooks.clear()
    assert module(x).tolist() == compiled(x).tolist() == [2.0, 2.0]
