import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")


@pytest.fixture(autouse=True)
def untimed_guards(monkeypatch):
    """Skip Dynamo's timing of guards, which flushes the processor's cache for each compiled frame."""
    guards = pytest.importorskip("torch._dynamo.guards")
    monkeypatch.setattr(guards, "profile_guard_manager", lambda *args: 0.0, raising=False)


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


class Base(torch.nn.Module):
    def forward(self, x):
        return x * 5


def doubling():
    """A new module class, which doubles its input, so that a test may replace it."""

    class Scale(torch.nn.Module):
        def forward(self, x):
            return x * 2

    return Scale


def one_call():
    Scale = doubling()

    class Replacing(Scale):
        def forward(self, x):
            return super().forward(x) + 1

    return Scale, Replacing


def the_same_base():
    class Scale(Base):
        def forward(self, x):
            return super().forward(x) * 2

    class Replacing(Base):
        def forward(self, x):
            return super().forward(x) + 1

    return Scale, Replacing


def called_by_its_class_and_instance():
    Scale = doubling()

    class Replacing(Scale):
        def forward(self, x):
            return super(Replacing, self).forward(x) + 1  # noqa: UP008

    return Scale, Replacing


def several_calls():
    class Scale(Base):
        offset = 3

        @staticmethod
        def halved(x):
            return x / 2

        @property
        def factor(self):
            return 7

    class Replacing(Scale):
        def forward(self, x):
            return super().forward(x) * super().factor + super().halved(x) + super().offset

    return Scale, Replacing


def a_class_method():
    class Scale(torch.nn.Module):
        @classmethod
        def scaled(cls, x):
            return x * 2

        def forward(self, x):
            return self.scaled(x)

    class Replacing(Scale):
        @classmethod
        def scaled(cls, x):
            return super().scaled(x) + 1

    return Scale, Replacing


def kept_in_a_variable():
    Scale = doubling()

    class Replacing(Scale):
        def forward(self, x):
            above = super()
            again = super()
            return above.forward(x) + again.forward(x)

    return Scale, Replacing


def special_methods():
    Scale = doubling()

    class Replacing(Scale):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)

        def __getattr__(self, name):
            return 4 if name == "missing" else super().__getattr__(name)

        def __call__(self, x):
            return super().__call__(x) + 1

        def forward(self, x):
            self.seen = 3
            return super().forward(x) + self.missing + self.seen

    return Scale, Replacing


def a_name_that_is_not_there():
    Scale = doubling()

    class Replacing(Scale):
        def forward(self, x):
            try:
                return super().missing(x)
            except AttributeError:
                return super().forward(x) + 9

    return Scale, Replacing


@pytest.mark.parametrize(
    "classes",
    [
        one_call,
        the_same_base,
        called_by_its_class_and_instance,
        several_calls,
        a_class_method,
        kept_in_a_variable,
        special_methods,
        a_name_that_is_not_there,
    ],
)
def test_super_in_a_compiled_method_of_a_replacing_class(hooks, classes):
    scale, replacing = classes()
    x = torch.ones(2)
    hooks.add(scale, replacing, "replace")
    for module in (scale(), replacing()):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, module=module: module(x), backend="eager")
        expected = module(x).tolist()
        assert compiled(x).tolist() == compiled(x).tolist() == expected
