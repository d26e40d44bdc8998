"""Thirty ways in which a forward reaches a number, each a package of its own: ``{C}`` stands for the number."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEAD = "import functools, operator, os, sys, types\nimport torch\nfrom torch import nn\n"
_CLASS = """class Model(nn.Module):
    scale_a = 2.0
    def __init__(self):
        super().__init__()
        self.layer, self.mode, self.name, self.index = nn.Linear(8, 8), "a", "go_a", 0
"""


def _way(body: str, top: str = "", method: str = "", **files: str) -> dict[str, str]:
    methods = "".join(f"    {line}\n" for line in method.splitlines())
    text = f"{HEAD}{top}\n{_CLASS}{methods}    def forward(self, x):\n        x = self.layer(x)\n"
    return {"model": text + "".join(f"        {line}\n" for line in body.splitlines()), **files}


_GO = "def go_a(self, x): return x * {C}"
_F = "def go_a(x): return x * {C}"
WAYS: dict[str, dict[str, str]] = {
    "a function": _way("return go_a(x)", _F),
    "a method": _way("return self.go_a(x)", method=_GO),
    "getattr of an f-string": _way('return getattr(self, f"go_{self.mode}")(x)', method=_GO),
    "getattr of an attribute's text": _way("return getattr(self, self.name)(x)", method=_GO),
    "methodcaller": _way('return operator.methodcaller("go_" + self.mode, x)(self)', method=_GO),
    "a table of functions": _way("return T[self.mode](x)", f"{_F}\nT = {{'a': go_a}}"),
    "globals()": _way('return globals()["go_" + self.mode](x)', _F),
    "the dictionary of the class": _way('return type(self).__dict__["go_" + self.mode](self, x)', method=_GO),
    "vars of the class": _way('return vars(type(self))["go_" + self.mode](self, x)', method=_GO),
    "eval": _way('return eval("s." + "go_a(x)", {"s": self, "x": x})', method=_GO),
    "exec": _way('d = {"x": x, "f": go_a}\nexec("y = f(x)", d)\nreturn d["y"]', _F),
    "a class as a namespace": _way('return x * getattr(N, "k".upper())', "class N:\n    K = {C}"),
    "singledispatch": _way(
        "return f(x)",
        "@functools.singledispatch\ndef f(x): return x\n@f.register\ndef _(x: torch.Tensor): return x * {C}",
    ),
    "a closure": _way("return f(x)", "def mk(c):\n    def g(x): return x * c\n    return g\nf = mk({C})"),
    "a property": _way("return x * self.k", method="@property\ndef k(self): return {C}"),
    "__getattr__ of an object": _way(
        "return x * n.foo", "class N:\n    def __getattr__(self, name): return {C}\nn = N()"
    ),
    "a default": _way("return f(x)", "def f(x, c={C}): return x * c"),
    "a constant": _way("return x * K", "K = {C}"),
    "a constant by its module": _way('return x * getattr(sys.modules[__name__], "k".upper())', "K = {C}"),
    "a registry of subclasses": _way(
        "return R[0]().go(x)",
        "R = []\nclass B:\n    def __init_subclass__(cls): R.append(cls)\n"
        "class C1(B):\n    def go(self, x): return x * {C}",
    ),
    "dir": _way(
        "for n in dir(self):\n    if n.startswith('go_'): x = getattr(self, n)(x)\nreturn x", method=_GO
    ),
    "lambdas in a list": _way("return F[self.index](x)", "F = [lambda x: x * {C}]"),
    "a class attribute by getattr": _way(
        'return x * getattr(self, "k_" + self.mode)', method="k_a = {C}"
    ),
    "a base in another file": _way(
        'return self.__class__.__mro__[1].go_a(self, x)', "from .base import Base\nnn = types.SimpleNamespace("
        "Module=Base, Linear=nn.Linear)", base=f"from torch import nn\nclass Base(nn.Module):\n    {_GO}\n"
    ),
    "a function of another file": _way("return helper.go_a(x)", "from . import helper", helper=_F),
    "a function of another file, by getattr": _way(
        'return getattr(helper, "go_" + self.mode)(x)', "from . import helper", helper=_F
    ),
    "a file that another file imports": _way(
        "return helper.go(x)",
        "from . import helper",
        helper="from . import deep\ndef go(x): return getattr(deep, 'go_' + 'a')(x)\n",
        deep=_F,
    ),
    "an import within the forward": _way("from .late import go_a\nreturn go_a(x)", late=_F),
    "an import within a late import": _way(
        "from . import late\nreturn late.go(x)", late="from .later import go_a\ndef go(x): return go_a(x)\n", later=_F
    ),
    "subclasses of a class": _way(
        "return [k for k in B.__subclasses__()][0]().go(x)",
        "class B: pass\nclass C1(B):\n    def go(self, x): return x * {C}",
    ),
    "importlib": _way(
        "import importlib\nreturn importlib.import_module(__package__ + '.late').go_a(x)", late=_F
    ),
    "a partial function": _way("return f(x)", "f = functools.partial(operator.mul, {C})"),
    "a file of numbers": _way(
        "with open(os.path.join(os.path.dirname(__file__), 'number.txt')) as f: return x * float(f.read())"
    ),
    "an environment variable": _way('return x * float(os.environ.get("WAYS_NUMBER", "1"))'),
    "an environment variable by a part": _way('return x * float(os.environ["WAYS_" + self.mode.upper()])'),
    "a switch of torch": _way("return x * (2 if torch.backends.cuda.matmul.allow_tf32 else 3)"),
}  # fmt: skip


def write(folder: Path, number: str) -> None:
    """Writes a package for each way, with a number."""
    for index, files in enumerate(WAYS.values()):
        package = folder / f"way{index}"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("")
        (package / "number.txt").write_text(number)
        for name, text in files.items():
            (package / f"{name}.py").write_text(text.replace("{C}", number))


def main() -> None:
    """Compiles each way; prints for each whether it was traced, whether it is eager's, and eager's sum."""
    import importlib

    import torch

    import dovetail
    from dovetail.cache import traces

    sys.path.insert(0, sys.argv[1])
    traced: list[bool] = []
    own: Any = traces.tracing.trace

    def noted(*args: Any, **kwargs: Any) -> Any:
        traced.append(True)
        return own(*args, **kwargs)

    traces.tracing.trace = noted
    found: dict[str, tuple[bool, bool, float]] = {}
    x = torch.ones(2, 8)
    for index, name in enumerate(WAYS):
        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = name == "a switch of torch" and sys.argv[2] == "2.0"
        model = importlib.import_module(f"way{index}.model").Model().eval()
        traced.clear()
        result = dovetail.compile(model, (x,), backend="cpu")(x)
        with torch.no_grad():
            want = model(x)
        found[name] = bool(traced), torch.equal(result, want), float(want.sum())
    traces.wait()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
